"""The initial weights of every model, and of the uppermost layers of a pretrained one."""

import torch
from torch import nn

from bertkit.kernels.linear import Linear
from bertkit.model.heads import BertWithHeads


def init_weights(model: nn.Module, std: float, generator: torch.Generator) -> None:
    """Initialise every parameter: truncated normal matrices, zero biases, norms with weight one and bias zero.

    The recurrent matrix of each gate of a GRU or an LSTM is orthogonal (Bahdanau et al. 2015, appendix B.1). The normal
    distribution is cut at two standard deviations, as in google-research/bert modeling.py `create_initializer`, and in
    transformers' ModernBERT; its BERT does not cut it. `std` is `initializer_range`; with `scale_outputs` that of some matrices is
    smaller (Shoeybi et al. 2019, section 3), and the identity is added to that of a masked LM head that `begins_as_identity`, so
    that it predicts a token that is shown. ModernBERT's classifiers have their own. A parameter with another name than torch's, `weight`
    and `bias`, keeps the values that its module gave it. The generator is on the CPU.
    """
    for module in model.modules():
        of_module = std * module.init_scale if isinstance(module, Linear) else std
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            elif not name.startswith("weight"):
                continue  # a plug-in's
            elif parameter.ndim == 1:
                nn.init.ones_(parameter)
            elif name.startswith("weight_hh"):
                for gate in torch.split(parameter, parameter.shape[1]):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                nn.init.trunc_normal_(parameter, std=of_module, a=-2 * of_module, b=2 * of_module, generator=generator)
                if isinstance(module, Linear) and module.begins_as_identity:
                    parameter.data.add_(torch.eye(len(parameter)))


def reinitialise_top(model: BertWithHeads, num_layers: int, seed: int) -> None:
    """Re-initialise the pooler and the uppermost layers, as at the start of pretraining.

    Source: Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning", section 5.
    """
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = [*model.bert.encoder.layers][len(model.bert.encoder.layers) - num_layers :]
    if num_layers and model.bert.pooler is not None:
        modules.append(model.bert.pooler)
    for module in modules:
        init_weights(module, model.config.initializer_range, generator)
