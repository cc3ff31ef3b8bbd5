"""What `import stepgrad as sg` offers, for editors and type checkers; __init__.py loads it when first used."""

from stepgrad import detector as detector
from stepgrad import errors as errors
from stepgrad import overlaps as overlaps
from stepgrad import reference as reference
from stepgrad.deploy import apply_thresholds as apply_thresholds
from stepgrad.deploy import calibrate as calibrate
from stepgrad.deploy import thresholds as thresholds
from stepgrad.evaluation import Evaluator as Evaluator
from stepgrad.evaluation.paired import compare as compare
from stepgrad.losses import ranking as ranking
from stepgrad.losses.detection import DetectionLoss as DetectionLoss
from stepgrad.losses.detection import MAPLoss as MAPLoss
from stepgrad.losses.distributed import DistributedDetectionLoss as DistributedDetectionLoss
from stepgrad.losses.distributed import DistributedMAPLoss as DistributedMAPLoss
from stepgrad.losses.functional import map_pseudogradient as map_pseudogradient
from stepgrad.losses.functional import map_steps as map_steps
from stepgrad.losses.functional import mean_average_precision as mean_average_precision
from stepgrad.losses.functional import nms as nms
from stepgrad.losses.large_batch import large_batch as large_batch
from stepgrad.losses.ranking import APLoss as APLoss
from stepgrad.losses.ranking import NDCGLoss as NDCGLoss
from stepgrad.metric import metrics as metrics
from stepgrad.metric.over_classes import MAPResult as MAPResult
from stepgrad.metric.protocol import Protocol as Protocol
from stepgrad.models.fine_tuning import finetune as finetune
from stepgrad.models.new_head import train_new_head as train_new_head
from stepgrad.models.rescore import Rescorer as Rescorer
from stepgrad.steps import layers as layers
from stepgrad.steps.estimators import Steps as Steps
from stepgrad.steps.estimators import mee as mee
from stepgrad.steps.estimators import sde as sde
from stepgrad.steps.nearest import find_steps as find_steps
from stepgrad.steps.nearest import pseudogradient as pseudogradient
from stepgrad.steps.torch_function import step_function as step_function

__version__: str

__all__: list[str]
