"""Imports the files of all built-in architectures, which register themselves; a new one adds its line here."""

from bertkit.interop.hugging_face import bert as bert
from bertkit.interop.hugging_face import encoder_decoder as encoder_decoder
from bertkit.interop.hugging_face import modern_bert as modern_bert
from bertkit.interop.hugging_face import roberta as roberta
