"""The tokens that the files of a tokenizer add to its vocabulary, in the order in which `transformers` adds them.

They are in `added_tokens_decoder` of tokenizer_config.json; if that is missing, in added_tokens.json and tokenizer.json. The
special tokens by their roles, and extra ones, follow.

Source: transformers 5.23, tokenization_utils_base.py `_from_pretrained`, tokenization_utils_tokenizers.py `__init__`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from bertkit.base.errors import refusing
from bertkit.base.text_files import JsonObject, JsonValue
from bertkit.base.typed_settings import refuse

ROLES = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]  # in the order of transformers
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class AddedTokens:
    """The added tokens of the files of a tokenizer.

    `listed` are those with an id, in the order of their ids; `roles` the special tokens by the names of their roles, such as
    mask_token; `extra` other special tokens.
    """

    def __init__(self, config: JsonObject, special: JsonObject, added: JsonObject, in_file: JsonValue) -> None:
        """Read tokenizer_config.json, special_tokens_map.json, added_tokens.json, and the tokens in tokenizer.json."""
        own = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        settings, later = config, list[JsonValue]()
        decoder = config.get("added_tokens_decoder")
        if not isinstance(decoder, Mapping):  # files of transformers 5, and those before 4.34
            settings, later = config | special, special.get("extra_special_tokens") or []
            is_list = own and not isinstance(own, Mapping)
            later = later or ([] if is_list else special.get("additional_special_tokens") or [])
            known = {name_of(settings[role]) for role in ROLES if _is_token(settings.get(role))}
            known |= {name_of(token) for token in [*own, *(special.get("extra_special_tokens") or [])]}
            decoder = {number: _legacy(name, name in known) for name, number in added.items()}
            decoder |= {token["id"]: token for token in in_file or ()}
        self.listed = {
            int(number): _token(token) for number, token in sorted(decoder.items(), key=lambda each: int(each[0]))
        }
        lists = [each for each in (own, later) if not isinstance(each, Mapping)]
        named = [{key: value for key, value in settings.items() if key.endswith("_token") and key not in ROLES}]
        named += [dict(each) for each in (own, later) if isinstance(each, Mapping)]
        others = {key: value for each in named for key, value in each.items() if _is_token(value)}
        by_name = {token.content: token for token in self.listed.values()}
        chosen = {role: settings[role] for role in ROLES if _is_token(settings.get(role))} | others
        self.roles = {role: by_name.get(name_of(value)) or _token(value, True) for role, value in chosen.items()}
        self.extra = [_token(token, True) for each in lists for token in each]

    def by_role(self, usual: Mapping[str, str]) -> dict[str, AddedToken]:
        """Return the special tokens by the names of their roles; `usual` are those that no file names."""
        by_name = {token.content: token for token in self.listed.values()}
        roles = {role: by_name.get(name) or _token(name, True) for role, name in usual.items()} | self.roles
        return {role: roles[role] for role in dict.fromkeys([*ROLES, *roles]) if role in roles}

    def all(self, usual: Mapping[str, str], known: Iterable[str] = ()) -> list[AddedToken]:
        """Return all tokens but those special ones that are `known` already."""
        roles = self.by_role(usual).values()
        names, special = (
            {*known, *(token.content for token in self.listed.values())},
            {token.content for token in roles},
        )
        more = [token for token in (*roles, *self.extra) if token.content not in names]
        return [_special(token) if token.content in special else token for token in (*self.listed.values(), *more)]

    def add_to(self, library: Tokenizer, usual: Mapping[str, str], where: Path) -> None:
        """Add them to the vocabulary; raises InputError if one gets another id than its own."""
        known = [token.content for token in library.get_added_tokens_decoder().values()]
        library.add_tokens(self.all(usual, known))
        for number, token in self.listed.items():
            actual = library.token_to_id(token.content)
            refuse(
                actual != number
                and f"{where}: added token {token.content!r} has id {number}, but the vocabulary makes it {actual}; restore the files"
            )


def read_added_tokens(
    where: Path, config: JsonObject, special: JsonObject, added: JsonObject, in_file: JsonValue
) -> AddedTokens:
    """Read the added tokens of a tokenizer; raises InputError if they are not as `transformers` writes them."""
    with refusing(
        (TypeError, ValueError, AttributeError, KeyError),
        lambda error: f"{where}: its added tokens are not as transformers writes them ({error}); restore the file",
    ):
        return AddedTokens(config, special, added, in_file)


def name_of(value: JsonValue) -> str:
    """Return the name of a token, which may be given with its flags."""
    return str(value["content"]) if isinstance(value, Mapping) else str(value)


def _token(value: JsonValue, is_special: bool = False) -> AddedToken:
    """Return a token from its name, or its name and flags."""
    if isinstance(value, Mapping):
        flags = {name: bool(value[name]) for name in FLAGS if name in value}
        return AddedToken(str(value["content"]), **{"special": is_special, **flags})
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no token")
    return AddedToken(value, special=is_special)


def _is_token(value: JsonValue) -> bool:
    return isinstance(value, str) or (isinstance(value, Mapping) and "content" in value)


def _special(token: AddedToken) -> AddedToken:
    """Return a token of a role, which is special."""
    return AddedToken(**{**token.__getstate__(), "special": True})


def _legacy(name: str, is_special: bool) -> JsonObject:
    return {"content": name, "normalized": not is_special, "special": is_special}
