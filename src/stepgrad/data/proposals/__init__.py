"""Class-agnostic windows: searched for, cached, imported, and measured."""

from stepgrad.data.proposals.cache import CachedProposals
from stepgrad.data.proposals.coverage import Recall, recall
from stepgrad.data.proposals.generate import generate_proposals, import_proposals
from stepgrad.data.proposals.imports import import_mat, import_npz, load_proposals
from stepgrad.data.proposals.search import SearchSettings, selective_search
from stepgrad.data.proposals.windows import PackedProposals, Proposals

__all__ = [
    "CachedProposals",
    "PackedProposals",
    "Proposals",
    "Recall",
    "SearchSettings",
    "generate_proposals",
    "import_mat",
    "import_npz",
    "import_proposals",
    "load_proposals",
    "recall",
    "selective_search",
]
