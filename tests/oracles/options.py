"""The reference's options, handed to the library too."""

from __future__ import annotations

from stepgrad.reference.mean_ap import Options as ReferenceOptions


class Options(ReferenceOptions):
    """`call()` gives the library the same keyword arguments."""

    def call(self, *names: str) -> dict[str, object]:
        """The named options, or the three that every function takes."""
        always = ("protocol", "nms_threshold", "match_threshold")
        return {name: getattr(self, name) for name in (*always, *names)}

    def for_gradient(self) -> dict[str, object]:
        return self.call("through_nms", "estimator", "radius", "min_step", "absent_classes", "balance")
