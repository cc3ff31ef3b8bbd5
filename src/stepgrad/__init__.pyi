"""What `import stepgrad as sg` offers, for editors and type checkers; __init__.py loads it when first used."""

from stepgrad import detector as detector
from stepgrad import errors as errors
from stepgrad import layers as layers
from stepgrad import reference as reference
from stepgrad.detector import FastRCNN as FastRCNN
from stepgrad.evaluation import Evaluator as Evaluator
from stepgrad.fine_tuning import finetune as finetune
from stepgrad.layers import ArgmaxOneHot as ArgmaxOneHot
from stepgrad.layers import ElementwiseLayer as ElementwiseLayer
from stepgrad.layers import NMSLayer as NMSLayer
from stepgrad.layers import Ranks as Ranks
from stepgrad.layers import Round as Round
from stepgrad.layers import Sign as Sign
from stepgrad.layers import Staircase as Staircase
from stepgrad.layers import StepLayer as StepLayer
from stepgrad.layers import Threshold as Threshold
from stepgrad.layers import TopKMask as TopKMask
from stepgrad.layers import UniformQuantizer as UniformQuantizer
from stepgrad.losses import baselines as baselines
from stepgrad.losses import ranking as ranking
from stepgrad.losses.detection_loss import DetectionLoss as DetectionLoss
from stepgrad.losses.distributed import DistributedDetectionLoss as DistributedDetectionLoss
from stepgrad.losses.distributed import DistributedMAPLoss as DistributedMAPLoss
from stepgrad.losses.large_batch import large_batch as large_batch
from stepgrad.losses.map_loss import MAPLoss as MAPLoss
from stepgrad.losses.ranking import APLoss as APLoss
from stepgrad.losses.ranking import AUCLoss as AUCLoss
from stepgrad.losses.ranking import MRRLoss as MRRLoss
from stepgrad.losses.ranking import NDCGLoss as NDCGLoss
from stepgrad.losses.ranking import PrecisionAtKLoss as PrecisionAtKLoss
from stepgrad.losses.ranking import RecallAtKLoss as RecallAtKLoss
from stepgrad.losses.ranking import SpearmanLoss as SpearmanLoss
from stepgrad.losses.score_memory import ScoreMemory as ScoreMemory
from stepgrad.metric import metrics as metrics
from stepgrad.metric.mean_ap import MAPResult as MAPResult
from stepgrad.metric.mean_ap import mean_average_precision as mean_average_precision
from stepgrad.metric.mean_ap import nms as nms
from stepgrad.metric.protocol import PROTOCOLS as PROTOCOLS
from stepgrad.metric.protocol import Protocol as Protocol
from stepgrad.metric.protocol import get_protocol as get_protocol
from stepgrad.new_head import train_new_head as train_new_head
from stepgrad.steps.estimators import mee as mee
from stepgrad.steps.estimators import radius_difference as radius_difference
from stepgrad.steps.estimators import sde as sde
from stepgrad.steps.map_steps import map_pseudogradient as map_pseudogradient
from stepgrad.steps.map_steps import map_steps as map_steps
from stepgrad.steps.method import Steps as Steps
from stepgrad.steps.nearest import NearestSteps as NearestSteps
from stepgrad.steps.nearest import Pseudogradient as Pseudogradient
from stepgrad.steps.nearest import SearchIncompleteWarning as SearchIncompleteWarning
from stepgrad.steps.nearest import find_steps as find_steps
from stepgrad.steps.nearest import pseudogradient as pseudogradient
from stepgrad.steps.torch_function import step_function as step_function

__version__: str

__all__: list[str]
