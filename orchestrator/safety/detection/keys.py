"""Keys and other secrets: recognised by the forms that services give to theirs, and by the name that they are assigned to."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from . import Detector, PatternDetector, PrivateFinding, follows

_W: Final = r"[A-Za-z0-9]"
_T: Final = r"[\w-]"
_B: Final = r"[A-Za-z0-9+/]"
_H: Final = r"[0-9a-f]"
_UUID: Final = rf"{_H}{{8}}-{_H}{{4}}-{_H}{{4}}-{_H}{{4}}-{_H}{{12}}"

_CLOUDS: Final = (
    r"(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA|AGPA|ANPA|AIPA)[A-Z0-9]{16}",  # Amazon Web Services
    rf"ABSK{_B}{{40,255}}+={{0,2}}|amzn\.mws\.{_UUID}",
    rf"AIza{_T}{{35}}|ya29\.{_T}{{20,255}}+|GOCSPX-{_T}{{20,64}}+|1//0{_T}{{40,255}}+|AQ\.Ab{_T}{{30,255}}+",  # Google
    rf"{_B}{{76,84}}(?:ASt|AEh|AMC|ABa|APIM|ACRC|AIoT|ASbT|ACDb|AzSe|AzFu){_B}{{0,16}}+={{0,2}}",  # Azure
    rf"(?<!{_B})(?<!sha512-){_B}{{86}}==|[\w~.-]{{3}}\dQ~[\w~.-]{{31,34}}|{_W}{{76}}AZDO{_W}{{4}}",
    rf"do[opr]_v1_{_H}{{64}}|HRKU-(?:AA{_T}{{58}}|{_UUID})|SCW[A-Z0-9]{{17}}|LTAI{_W}{{12,24}}|AKID{_W}{{32}}",
    rf"fo1_{_T}{{43}}|FlyV1 fm\d\w?_{_B}{{30,}}+|fm[12][ar]?_{_B}{{40,}}+|rnd_{_W}{{28,64}}+|AQVN{_T}{{35,38}}|y[0-3]_{_T}{{50,64}}+",
    rf"v[cC][pkiar]_{_W}{{24,64}}+|vercel_blob_rw_\w{{20,64}}+|nf[pcouv]_{_W}{{36,40}}+|v1\.0-{_H}{{24}}-{_H}{{146}}|cf(?:ut|at)_{_T}{{30,64}}+",
    rf"dapi{_H}{{32}}(?:-\d)?|cflt{_B}{{60}}|pscale_(?:tkn|pw|oauth|otkn)_[\w.=-]{{30,64}}+|napi_{_W}{{30,64}}+|npg_{_W}{{12,32}}+",
    rf"sbp_(?:v0_)?{_H}{{40}}|sb_(?:secret|publishable)_{_T}{{20,64}}+|mdb_sa_(?:id|sk)_{_T}{{20,64}}+|tskey-[a-z]{{2,10}}-{_T}{{10,80}}+",
)
_FORGES: Final = (
    rf"gh[pousr]_{_W}{{30,255}}+|github_pat_\w{{40,255}}+",
    rf"gl(?:pat|ptt|dt|rt|rtr|cbt|soat|imt|agent|ft|ffct|oas|wt)-{_T}{{20,255}}+|GR1348941{_T}{{20}}",  # GitLab
    rf"ATBB[\w=]{{24,64}}+|AT(?:ATT|CTT)3{_T}{{50,255}}+=?\w{{0,8}}+|ATTA[0-9a-zA-Z]{{60,80}}+",  # Atlassian
    rf"npm_{_W}{{36}}|pypi-{_T}{{50,255}}+|rubygems_{_H}{{48}}|dckr_[op]at_{_T}{{20,64}}+|cio{_W}{{32}}|oy2[a-z0-9]{{43}}",
    rf"CLOJARS_[0-9a-z]{{60}}|AKCp{_W}{{60,80}}+|cmVmdGtu{_W}{{50,80}}+|pul-{_H}{{40}}|sq[pua]_{_H}{{40}}|packagist_\w{{20,80}}+",
    rf"CCI(?:PAT|PRJ)_{_W}{{20,24}}_{_H}{{40}}|bk[ua]{{2}}_{_H}{{40}}|pat\.{_T}{{22}}\.{_H}{{24}}\.{_W}{{20}}|sha256~{_T}{{43}}",
    rf"PMAK-{_H}{{24}}-{_H}{{34}}|API-[A-Z0-9]{{26,36}}+|pnu_{_W}{{36}}|rdme_{_W}{{60,80}}+|sgp_(?:{_H}{{16}}_|local_)?{_H}{{40}}|snyk_\w{{20,64}}+",
    rf"{_W}{{14}}\.atlasv1\.[\w=-]{{60,70}}|hv[sbr]\.{_T}{{24,255}}+|(?<![\w.])s\.{_W}{{24}}(?!{_W})",  # HashiCorp
    rf"dp\.[a-z]{{2,5}}\.(?:[a-z0-9-]{{2,35}}\.)?{_W}{{40,64}}+|ops_eyJ[\w+/=-]{{50,}}+|st\.{_UUID}\.\w{{20,64}}+\.\w{{20,64}}+",
    r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",  # 1Password
)
_MODELS: Final = (
    rf"sk-{_T}{{20,255}}+",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    rf"(?:gsk|xai|pplx|tvly|r8|hf|fw|nvapi|csk|jina|lsv2|tgp|rpa|voyage|pa|wandb|pcsk|api_org)[_-]{_T}{{24,255}}+",
    rf"fc-{_H}{{32}}|ls__{_H}{{32}}|e2b_{_H}{{40}}|apify_api_{_W}{{36}}|a[ks]-{_W}{{22}}(?!{_W})|sk_{_H}{{48}}",
)
_MESSAGES: Final = (
    rf"xox[abceoprs](?:-\d-|\.xox[abp]-\d-|-){_T}{{10,255}}+|xapp-{_T}{{10,255}}+|xwfp-{_T}{{10,255}}+",  # Slack
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks|hooks\.zapier\.com/hooks/catch)/[\w/-]{16,255}+",
    rf"(?<![\w.-])[MNO]{_T}{{22,27}}\.{_T}{{6}}\.{_T}{{27,38}}(?!{_T})|mfa\.{_T}{{80,90}}",  # Discord
    rf"[0-9]{{8,10}}:AA{_T}{{32,33}}",  # Telegram
    rf"SG\.{_T}{{16,64}}+\.{_T}{{16,64}}+|key-{_H}{{32}}|{_H}{{32}}-{_H}{{8}}-{_H}{{8}}|{_H}{{32}}-us\d{{1,2}}|md-{_T}{{22}}(?!{_T})",
    rf"(?:AC|SK){_H}{{32}}|xkeysib-{_H}{{64}}-{_W}{{16}}|xsmtpsib-{_H}{{64}}-{_W}{{16}}|re_{_W}{{8,16}}_{_W}{{16,32}}+|PMAT-{_W}{{20,40}}+",
    rf"dG9rO{_B}{{50,80}}+={{0,2}}|os_v2_(?:app|org)_[a-z2-7]{{80,120}}+|(?:EAA|IGQ){_W}{{60,255}}+|\d{{13,17}}\|{_T}{{27}}(?!{_T})",
    rf"A{{20,22}}{_T}[\w%-]{{30,255}}+|AAAA{_T}{{7}}:{_T}{{100,180}}+|WPL_AP1\.[\w.+/=]{{16,48}}+",
)
_MONEY: Final = (
    rf"[prs]k_(?:live|test|org|prod)_{_W}{{10,255}}+|whsec_{_B}{{24,255}}+={{0,2}}",  # Stripe, and who writes like it
    rf"sq0[a-z]{{3}}-{_T}{{22,64}}+|EAAA[lE]?{_T}{{56,64}}+|access_token\$(?:production|sandbox)\${_W}{{16}}\${_H}{{32}}",
    rf"rzp_(?:live|test)_{_W}{{14,24}}+|FLW(?:PUB|SEC)K(?:_TEST|_LIVE)?-\w{{12,64}}+(?:-X)?|EZ[AT]K{_W}{{50,60}}+|shippo_(?:live|test)_{_H}{{40}}",
    rf"(?:access|public|link)-(?:sandbox|development|production)-{_UUID}|duffel_(?:live|test)_{_T}{{40,48}}+|(?:live|test)_(?:pub_)?{_W}{{30,44}}+",
    rf"AQE[a-z]{_B}{{60,255}}+={{0,2}}|shp(?:at|ca|pa|ss|ua)_[0-9a-fA-F]{{32}}|00D{_W}{{12,15}}![\w.]{{60,255}}+",
)
_TEAMS: Final = (
    rf"gl(?:sa|c)_[\w+/=]{{32,255}}+|eyJrIjoi[\w+/=-]{{30,255}}+|NR(?:AK|II|JS|RA|SP|IQ)-{_T}{{19,64}}+|{_H}{{32,36}}(?:FFFF)?NRAL",
    rf"sntry[su]_[\w+/=-]{{40,255}}+|{_H}{{32}}@o\d++\.ingest|dt0[a-z]\d\d\.[A-Z0-9]{{24}}\.[A-Z0-9]{{64}}|hc[abx]i?[ck]_\w{{20,64}}+",
    rf"xa[ap]t-{_UUID}|ph[csx]_{_W}{{40,64}}+|(?:sdk|api|mob|rel)-{_UUID}|[yu]\+{_T}{{18}}(?!{_T})|(?:secret|client|console)-{_W}{{40,48}}+",
    rf"lin_(?:api|oauth)_{_W}{{32,64}}+|ntn_{_W}{{40,64}}+|secret_{_W}{{43}}|fig[douh]{{1,2}}r?_{_T}{{32,64}}+|fio-u-[\w=-]{{64}}",
    rf"[0-2]/\d{{10,19}}(?:/\d{{10,19}})?:{_H}{{32}}|pat{_W}{{14}}\.{_H}{{64}}|(?<!{_W})key{_W}{{14}}(?![\w-])|pk_\d{{6,10}}_[A-Z0-9]{{32}}",
    rf"sl\.(?:u\.)?{_T}{{60,255}}+|pat-(?:na|eu|ap)\d-{_UUID}|tfp_[\w.=-]{{40,64}}+|CFPAT-{_T}{{43}}|[sp]k\.eyJ{_T}{{20,255}}+\.{_T}{{20,24}}",
    rf"(?<![\w-])00{_T}{{40}}(?!{_T})|1000\.{_H}{{32}}\.{_H}{{32}}|{_T}{{6}}\.{_T}{{6}}:{_T}{{22,43}}(?!{_T})",
)
_OWN: Final = (
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}|(?<![1-9A-HJ-NP-Za-km-z])[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?![1-9A-HJ-NP-Za-km-z])",
    rf"[xyz]prv[1-9A-HJ-NP-Za-km-z]{{100,112}}+|base64:{_B}{{43}}=|PuTTY-User-Key-File-\d",
    r"\$2[abxy]?\$\d\d\$[./A-Za-z0-9]{53}|\$(?:argon2(?:id?|d)|scrypt|y|6|5)\$[\w.,=$/+-]{40,255}+",  # passwords, hashed
)
_FORMS: Final = "|".join((*_CLOUDS, *_FORGES, *_MODELS, *_MESSAGES, *_MONEY, *_TEAMS, *_OWN))
_ISSUED: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{_FORMS})")
_LONG_WORD: Final = re.compile(r"[^\s\"'`<>\\]{16,}+(?:\sfm\d[^\s]{16,}+)?")
"""Keys stand in words of so many characters; only these are held against the forms."""
_MIXED: Final = re.compile(r"\d|[a-z][A-Z]")


class IssuedKeyDetector:
    """Finds keys by the forms that services give to theirs, without any word around."""

    def find(self, text: str) -> list[PrivateFinding]:
        return [PrivateFinding(*key.span(), "key", key[0]) for word in _LONG_WORD.finditer(text) for key in _keys_in(text, word)]


def _keys_in(text: str, word: re.Match[str]) -> Iterator[re.Match[str]]:
    """Return the keys in a word. A match of lower case letters alone is none: names of programs have the same beginnings."""
    return (key for key in _ISSUED.finditer(text, *word.span()) if _MIXED.search(key[0]))


_TOKEN: Final = r"[\w-]"
_JWT: Final = re.compile(rf"(?<!{_TOKEN})eyJ{_TOKEN}{{8,}}+\.eyJ{_TOKEN}{{8,}}+(?:\.{_TOKEN}*+)?")
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?>(?:[^-]|-(?!----)){0,16384})(?:-----END [A-Z0-9 ]{0,40}-----)?"
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
    r"(?>(?:\s{1,3}+(?:for|of|to|on|für|zum|zur|vom|von|du|de|del|della|para|pour|voor)"
    r"(?>(?:\s(?!(?:is|was|ist|lautet|war|es|est)\s)[^\s:=\"']{1,24}+){1,4}))?)"
)
_PASSWORD: Final = re.compile(
    rf"(?i)(?:{_PASSWORDS}){_FOR_WHAT}"
    r"(?:[\"'\])]?\s{0,3}+(?::=|=>|[:=：])\s{0,3}+|\s{1,3}+(?:is|was|ist|lautet|war|es|est|è|är|er|on|to|jest)\s{1,3}+:?\s?)"
    r"[\"'`]?([^\s\"'`,;<>\x00]{5,}+)"
)
_PASSWORD_HINTS: Final = (
    "pass|pw|contrase|kennwort|senha|wachtwoord|salasana|hasło|haslo|lösenord|adgangskode|parola|heslo|jelszó|şifre|пароль|パスワード|密码|"
    "비밀번호|parool|κωδικός"
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
    r"(?>(?i:[ -]?(?:code|nummer|number|no\.?))?)(?:\s{0,3}+(?>(?::|=|is|ist|lautet|es|est|è)?)\s{0,3}+)(\d{3}(?>(?:[ -]?\d{1,5}+)?))(?!\d)"
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
"""Bits of entropy per character. Words stay below it or have no digits; random letters and digits exceed it from about 12 characters on."""


def _is_random(match: re.Match[str]) -> bool:
    """Return whether the assigned value looks random: letters and digits, with the entropy of random ones."""
    return _is_mixed(match[1], bits=_BITS)


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


def _is_mixed(value: str, *, bits: float = _BITS - 0.5) -> bool:
    has_both = any(character.isdigit() for character in value) and any(character.isalpha() for character in value)
    return len(value) >= _LEAST_SESSION and has_both and not _REFERENCE.match(value) and entropy(value) >= bits


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
    PatternDetector("key", _PASSWORD, _is_password, group=1, hints=_PASSWORD_HINTS.split("|")),
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
