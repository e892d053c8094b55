"""Where a name that means a secret may stand: one expression, so that most lines of a log are passed over at once."""

from __future__ import annotations

NAME_HINT = (
    r"(?i:(?:pass(?:w|_w|-w|phrase|code|[_-]?word)|p(?:s|ss)w|pwd|_pass|secret|cred|authori|cookie|jwt|psk|kennwort|senha"
    r"|contrasena|motdepasse|connection_?string|api_?key|apikey)[\w.\-]{0,24}[\"'`\\\])]{0,6}[ \t]{0,8}"
    r"(?:-{0,2}[:=>|\xe2]|\.\.\.|[ \t]|,[ \t]*[\\\"'])"
    r"|(?:pw|[\"']pass|(?:\b|\\n)otp)[\"'`\\\])]{0,6}[ \t]{0,8}[:=]"
    r"|(?:requirepass|masterauth|bindpw|rootpw)[ \t]"
    r"|(?:key|token|secret|password|credential)s?[ \t][\"'\\\[(<]{0,4}[A-Za-z0-9+/=_.~\-]{16}"
    r"|(?:password|passphrase|secret|token|(?:api|access|private|license|encryption)[ _-]?key)s? [\\\"'\[]"
    r"|(?:pass(?:word|phrase|code)s?|\bpw) (?:(?:to|as|with|of|=) )?[\w.$!@#%^&*+-]{0,40}[0-9]"
    r"|(?:key|token)[ _-]id[ :=]|(?:recovery|backup)[ _-]codes?[\"'\\]{0,4} ?[:=]"
    r"|(?:word|phrase|code|secret|token|key) (?:(?:has|have) been )?(?:re)?(?:set|changed) to "
    r"|[\"']key\\{0,3}[\"'] ?[:=] ?\\{0,3}[\"'][a-z0-9+/=_-]{20}"
    r"|(?:key|token|tok|auth|dsn|webhook|pat|bearer|pass)[\w.\-]{0,24}[\"'`\\\])]{0,6}[ \t]{0,8}"
    r"(?:[:=>|\xe2,]|\.\.\.|[ \t][ \t])[>=]{0,2}[ \t.|\x82\x94]{0,60}[\\\"'\[{(bru|]{0,6}[0-9.,+-]{0,12}"
    r"[A-Za-z_$/%^*!#@~]"
    r"|[\w\-][_-](?:key|token|tok|auth|pat)[\"'`\\\])]{0,6}[ \t]{0,8}[:=][ \t\"'\\]{0,8}[0-9]{6}"
    r"|[_.\-](?:key|token|tok|pat)[ \t][\"']?[^\s]{0,30}[0-9]"
    r"|(?:key|token|pat|auth): ?[a-z][\w\[\], .|]{0,60} ?= ?[\"']"
    r"|--?[\w.\-]{0,60}(?:key|token|tok|auth|dsn|webhook|pat|pass)[\w\-]{0,24}[\"',\\ \t]"
    r"|[:=][ \t]*[\"']?[\w.\-]{0,60}(?:key|token|tok|secret|pass\w{0,8}|credentials?|cookie|pwd|jwt|dsn|auth)"
    r"[\"',]{0,3}[ \t]*\r?(?:\n|$)"
    r"|(?:[:=][ \t]*[\"']|>)[\w.\-]{0,60}(?:key|token|secret|password|credentials?)(?:[\"']|</)"
    r"|(?:secret|key|token|pass\w{0,8}|credential|webhook)s?(?: [a-z]{1,12})? (?:is|was)\b)"
)
"""What stands in each line in which `assigned` finds something, and in few others."""
