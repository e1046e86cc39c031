"""The settings of each command, by its name."""

from bertkit.settings.bench import BenchSettings
from bertkit.settings.compare import CompareSettings
from bertkit.settings.embed import EmbedSettings
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.export import ExportSettings, VerifySettings
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.glue import GlueSettings
from bertkit.settings.index import IndexSettings
from bertkit.settings.predict import PredictSettings
from bertkit.settings.prepare import PrepareSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.search import SearchSettings
from bertkit.settings.serve import ServeSettings
from bertkit.settings.view import ViewSettings

SCHEMAS = {
    "prepare": PrepareSettings,
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
    "predict": PredictSettings,
    "glue": GlueSettings,
    "embed": EmbedSettings,
    "evaluate": EvaluateSettings,
    "compare": CompareSettings,
    "view": ViewSettings,
    "serve": ServeSettings,
    "index": IndexSettings,
    "search": SearchSettings,
    "export": ExportSettings,
    "verify": VerifySettings,
    "bench": BenchSettings,
}
