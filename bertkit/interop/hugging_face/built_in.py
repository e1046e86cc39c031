"""Imports the files of all built-in architectures, which register themselves; a new one adds its line here."""

from bertkit.interop.hugging_face import bert as bert
from bertkit.interop.hugging_face import encoder_decoder as encoder_decoder
from bertkit.interop.hugging_face import modern_bert as modern_bert
from bertkit.interop.hugging_face.family import albert as albert
from bertkit.interop.hugging_face.family import deberta as deberta
from bertkit.interop.hugging_face.family import deberta_v1 as deberta_v1
from bertkit.interop.hugging_face.family import distilbert as distilbert
from bertkit.interop.hugging_face.family import electra as electra
from bertkit.interop.hugging_face.family import ernie as ernie
from bertkit.interop.hugging_face.family import eurobert as eurobert
from bertkit.interop.hugging_face.family import gte as gte
from bertkit.interop.hugging_face.family import jina as jina
from bertkit.interop.hugging_face.family import mpnet as mpnet
from bertkit.interop.hugging_face.family import nomic_bert as nomic_bert
from bertkit.interop.hugging_face.family import roberta as roberta
