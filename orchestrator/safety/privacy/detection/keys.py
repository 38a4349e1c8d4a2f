"""Keys and other secrets: recognised by issued prefixes, by their form, and by the name that they are assigned to."""

import math
import re
from collections import Counter
from typing import Final

from .finding import Detector
from .issued_keys import IssuedKeyDetector
from .patterns import PatternDetector, follows

_TOKEN: Final = r"[\w-]"
_JWT: Final = re.compile(rf"(?<!{_TOKEN})eyJ{_TOKEN}{{8,}}+\.eyJ{_TOKEN}{{8,}}+(?:\.{_TOKEN}*+)?")
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----)){0,16384}+(?:-----END [A-Z0-9 ]{0,40}-----)?"
)
_IN_URL: Final = re.compile(r"://[^\s/:@?#]{0,64}+:([^\s/@?#]{1,128})@")
_NAMES: Final = (
    r"(?:api|access|secret|private|account|client|auth|encryption|signing|master|service)[ _-]?(?:key|token|secret)s?"
    r"|[_-]key|secrets?|tokens?|credentials?"
)
_ASSIGNED: Final = re.compile(
    rf"(?i)(?:{_NAMES})(?:[\"']?\s{{0,3}}+(?::=|=>|[:=])\s{{0,3}}+|\s{{1,3}}+(?:is|was)\s{{1,3}}+)(?:(?:bearer|basic)\s)?[\"'`]?([^\s\"'`,;<>\x00]{{12,}}+)"
)
_PASSWORDS: Final = (
    r"passwor[dt]|passwort|passwd|passphrase|passcode|\bpwd?\b|\bpass|contrase[ñn]a|mot de passe|kennwort|senha|wachtwoord"
    r"|salasana|hasło|haslo|lösenord|adgangskode|passord|parola|heslo|jelszó|şifre|пароль|パスワード|密码|비밀번호|parool|κωδικός"
)
_FOR_WHAT: Final = (
    r"(?:\s{1,3}+(?:for|of|to|on|für|zum|zur|vom|von|du|de|del|della|para|pour|voor)"
    r"(?:\s(?!(?:is|was|ist|lautet|war|es|est)\s)[^\s:=\"']{1,24}+){1,4}+)?+"
)
_PASSWORD: Final = re.compile(
    rf"(?i)(?:{_PASSWORDS}){_FOR_WHAT}"
    r"(?:[\"'\])]?\s{0,3}+(?::=|=>|[:=：])\s{0,3}+|\s{1,3}+(?:is|was|ist|lautet|war|es|est|è|är|er|on|to|jest)\s{1,3}+:?\s?)"
    r"[\"'`]?([^\s\"'`,;<>\x00]{5,}+)"
)
_PASSWORD_HINTS: Final = (
    *("pass", "pw", "contrase", "kennwort", "senha", "wachtwoord", "salasana", "hasło", "haslo", "lösenord", "adgangskode"),
    *("parola", "heslo", "jelszó", "şifre", "пароль", "パスワード", "密码", "비밀번호", "parool", "κωδικός"),
)
_OPTION: Final = re.compile(
    r"(?i)(?<![\w-])--?(?:[a-z]{1,12}+-)?+(?:password|passwd|pass|passphrase|token|secret|api-?key|auth|credentials?)(?:[ =]\s{0,2}+)[\"']?"
    r"([^\s\"'`<>\x00-][^\s\"'`<>\x00]{4,255}+)"
)
_SIGNED_IN: Final = re.compile(
    r"(?<![\w-])(?:-u|--user|--proxy-user|-U|--basic|--auth)[ =]?\s{0,2}+[\"']?([^\s:\"'/]{1,64}+:[^\s\"'`<>\x00]{3,255}+)"
)
_LOGIN: Final = re.compile(
    r"(?i)\blogin\s{1,3}+\S{1,64}+\s{1,3}+password\s{1,3}+(\S{3,255}+)|\bsshpass\s{1,3}+-p\s{0,3}+[\"']?([^\s\"']{3,255}+)"
)
_AT_HOST: Final = re.compile(r"(?<![\w/.:@-])[\w.+-]{1,64}+:([^\s:/@\"'<>]{4,64}+)@(?:localhost|[\w-]{1,63}+(?:\.[\w-]{1,63}+){1,8}+)")
_COOKIE: Final = re.compile(r"(?i)\b(?:set-)?cookies?[\"']?\s{0,3}+[:=]\s{0,3}+[\"']?([^\r\n\"']{8,1024}+)")
_SESSION: Final = re.compile(
    r"(?i)(?<![a-z])(?:php|j|asp\.net_?)?(?:sess(?:ion)?(?:[_-]?(?:id|token|key))?|sid|connect\.sid|csrf[_-]?token|xsrf-token|_gitlab_session"
    r"|remember[_-]me|auth[_-]?cookie)[\"']?\s?[:=]\s?[\"']?([^\s;,\"'<>]{12,512}+)"
)
_CODE: Final = re.compile(
    r"(?:\b(?:(?i:my|mein[e]?|mon|mi|mijn|il mio) (?i:pin)|PIN|TAN|CVV2?|CVC2?|OTP|TOTP|2FA|MFA|PUK)"
    r"|(?i:\bpin[ -]?(?:code|number|nummer)|security code|sicherheitscode"
    r"|verification code"
    r"|code de sécurité|código de seguridad|geheimzahl|one-time (?:code|password)))"
    r"(?i:[ -]?(?:code|nummer|number|no\.?))?+(?:\s{0,3}+(?::|=|is|ist|lautet|es|est|è)?+\s{0,3}+)(\d{3}(?:[ -]?\d{1,5}+)?+)(?!\d)"
)
_SPOKEN: Final = re.compile(
    rf"(?i)(?<![\w-])(?:{_NAMES}|passw(?:or[dt]|d)|passwort|pwd?|pass|user pass|login)\s{{1,3}}+[\"'`]?([^\s\"'`,;<>:=()]{{6,}}+)"
)
_PHRASE: Final = re.compile(
    r"(?i)(?:passphrase|(?:recovery|seed|backup|secret) (?:phrase|words)|mnemonic|passwortsatz|wiederherstellungs(?:wörter|phrase))"
    r"(?:\s{0,3}+[:=]\s{0,3}+|\s{1,3}+(?:is|was|ist)\s{1,3}+:?\s?)[\"'`]?((?:[^\W\d_]{2,12}+[ ,-]{1,3}+){3,24}+(?:[^\W\d_]{2,12}+)?+)"
)
_ATTACHED: Final = re.compile(r"(?<![\w-])(?:mysql|mysqldump|mysqladmin|mariadb)(?:\s[^\n|;]{0,80}?)?\s-p([^\s\"'`;|]{4,}+)")
_QUERY: Final = re.compile(
    r"(?i)[?&;](?:sig|signature|token|access_token|auth|key|apikey|api_key|code|secret|x-amz-signature|x-goog-signature|password|pwd)=([^&\s\"'<>#]{12,1024}+)"
)
_CONNECTION: Final = re.compile(r"(?i)(?:AccountKey|SharedAccessKey|SharedAccessSignature|Pwd|Password)=([^;\s\"'<>]{6,512}+)")
_AUTHORIZATION: Final = re.compile(r"(?i)\b(?:bearer|basic|token|ssws|apikey)\s{1,3}+([A-Za-z0-9._~+/=-]{16,}+)")
_REFERENCE: Final = re.compile(r"[$%{(\[*.]|os\.|env\.|process\.|self\.|get\w{0,20}\(|x{4}|\.{3}")
"""Beginning of an assigned value that is no secret, but a reference to one, or a redacted one."""
_CODE_HINTS: Final = ("pin", "tan", "cvv", "cvc", "otp", "fa", "puk", "code", "código", "geheimzahl", "one-time")
_BETWEEN_LETTERS: Final = re.compile(r"[a-zA-Z]\d{1,32}+[a-zA-Z]|\d{2,32}+[a-zA-Z]{1,32}+\Z")
_CLIENTS: Final = re.compile(
    r"(?i)\b(?:curl|wget|https?|httpie|xh|git|svn|ldapsearch|smbclient|mosquitto_\w{3}|nats|influx|jfrog|mvn|sftp|lftp)\b"
)
_LEAST_SESSION: Final = 12
_BITS: Final = 3.0
"""Bits of entropy per character. Words stay below it or have no digits; random letters and digits are above it from about 12 characters
on."""


def _is_random(match: re.Match[str]) -> bool:
    """Return whether the assigned value looks random: letters and digits, with the entropy of random ones."""
    value = match[1]
    has_both = any(character.isdigit() for character in value) and any(character.isalpha() for character in value)
    return has_both and not _REFERENCE.match(value) and entropy(value) >= _BITS


def _is_password(match: re.Match[str]) -> bool:
    """Return whether the assigned value is more than a word."""
    value = match[1].rstrip(".!?:)")
    return not value.isalpha() and not _REFERENCE.match(value) and len(set(value)) > 2


def entropy(text: str) -> float:
    """Return the bits per character, of the characters' own frequencies (Shannon)."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


def _is_session(match: re.Match[str]) -> bool:
    """Return whether a cookie holds a value that looks random."""
    return any(_is_mixed(value) for value in re.split(r"[;=\s]", match[1]))


def _is_mixed(value: str) -> bool:
    has_both = any(character.isdigit() for character in value) and any(character.isalpha() for character in value)
    return len(value) >= _LEAST_SESSION and has_both and not _REFERENCE.match(value) and entropy(value) >= _BITS - 0.5


def _is_given(match: re.Match[str]) -> bool:
    """Return whether an option is followed by a value, not by a reference to one."""
    return not _REFERENCE.match(match[match.lastindex or 0])


def _is_signed_in(match: re.Match[str]) -> bool:
    """Return whether `-u` is followed by a name and a password, not by a user and a group, or a module and a function."""
    secret = match[1].partition(":")[2]
    return _is_given(match) and (follows(_CLIENTS, match) or (any(map(str.isdigit, secret)) and not secret.isdigit() and "." not in secret))


def _is_spoken(match: re.Match[str]) -> bool:
    """Return whether the text behind a word for a secret looks like a secret, not like an ordinary word."""
    value = match[1].rstrip(".!?")
    kinds = sum(any(test(character) for character in value) for test in (str.islower, str.isupper, str.isdigit))
    return (
        _is_mixed(value) and not _REFERENCE.match(value)
        if len(value) >= _LEAST_SESSION
        else kinds >= 3 or (kinds == 2 and _BETWEEN_LETTERS.search(value) is not None)
    )


def _is_first(match: re.Match[str]) -> bool:
    """Return whether a part of an address looks random."""
    return _is_mixed(match[1])


KEYS: Final[tuple[Detector, ...]] = (
    IssuedKeyDetector(),
    PatternDetector("key", _JWT, hints=("eyj",)),
    PatternDetector("key", _PEM, hints=("private key",)),
    PatternDetector("key", _IN_URL, group=1, hints=("://",)),
    PatternDetector("key", _AT_HOST, _is_given, group=1, hints=("@",)),
    PatternDetector("key", _ASSIGNED, _is_random, group=1, hints=("key", "token", "secret", "credential")),
    PatternDetector("key", _PASSWORD, _is_password, group=1, hints=_PASSWORD_HINTS),
    PatternDetector("key", _AUTHORIZATION, _is_random, group=1, hints=("bearer", "basic", "token", "ssws")),
    PatternDetector("key", _OPTION, _is_given, group=1, hints=(" --", " -", "\n-")),
    PatternDetector("key", _SIGNED_IN, _is_signed_in, group=1, hints=("-u", "--", "-b")),
    PatternDetector("key", _LOGIN, _is_given, hints=("login", "sshpass")),
    PatternDetector("key", _COOKIE, _is_session, group=1, hints=("cookie",)),
    PatternDetector("key", _SESSION, _is_first, group=1, hints=("sess", "sid", "csrf", "xsrf", "remember", "cookie")),
    PatternDetector("key", _CODE, group=1, hints=_CODE_HINTS),
    PatternDetector("key", _SPOKEN, _is_spoken, group=1, hints=("key", "token", "secret", "credential", "pass", "pw", "login")),
    PatternDetector("key", _PHRASE, group=1, hints=("phrase", "words", "mnemonic", "satz", "wörter")),
    PatternDetector("key", _ATTACHED, _is_given, group=1, hints=(" -p",)),
    PatternDetector("key", _QUERY, _is_first, group=1, hints=("=",)),
    PatternDetector("key", _CONNECTION, _is_given, group=1, hints=("key=", "pwd=", "password=", "signature=")),
)
