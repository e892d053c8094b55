"""The first line of an answer: who, where, what it does, who waits for it in what; then the cause, if it is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ddx_tools.diagnosis.diagnose import NO_SYMPTOM
from ddx_tools.diagnosis.headline_details import detail
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.diagnosis.suspects import seated, words_of
from ddx_tools.diagnosis.waits import Waits, doing_of, is_on_one_host, who_waits
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Finding, Seat, Suspect, SuspectEvent, Verdict, rank_list
from ddx_tools.model.wording import capital

_NOTHING = re.compile(r"(?:[^;]*; )?((?i:not enough evidence) to name .*|Narrowed down, not decided: .*)", re.DOTALL)
_LONGEST, _LONG = 400, 250
_OF_VALUES = (
    "collective.dtype_mismatch", "collective.operation_mismatch", "collective.shape_mismatch", "memory.host_grows",
)  # fmt: skip
_KINDS_OF_END = {"crash", "hang", "memory", "startup"}
_NOBODY = "an unidentified rank"
_UNPLACED = re.compile(r"^(Ranks? [^;:]*(?:may hold the job up: (?:it|they) [^;:]*)?)(; cause undecided)")
_NAMES_A_PLACE = re.compile(r" at [^:]+:\d+| waits? for (?:it|them) in ")
# A headline is no field for text of the job: of what findings say it takes over these forms only.
_ENDED = re.compile(
    r"(?P<how> (?:was killed by SIG[A-Z0-9]{2,10}|raised [A-Za-z_][\w.]{0,80}|ended with exit code -?\d{1,10}))\b.*",
    re.DOTALL,
)
_RANKS = re.compile(r"^Ranks? [\d ,-]{1,40}(?= )")
_COMPARED = re.compile(
    r"\w{1,40} \(collective \d{1,12} of [\w .-]{1,40}\) has different sizes: (?:[\d ,()<>-]|ranks?|against){1,120}\."
    r"|Ranks? [\d ,-]{1,40} (?:was|were) aborted: "
    r"(?P<sizes>\d{1,12} bytes arrived from a peer, but only \d{1,12} fit)\."
)

_STEP = re.compile(r"The (last [a-z]{1,20} printed is \d{1,12}(?: of \d{1,12})?(?: of epoch [\d.]{1,12})?)\.")
_WAITED_FOR = re.compile(r" waits? for (?:it|them) in |timed out in ")
_TIMEOUT, _INPUT = "collective.timeout_reported", "rank.input_slow"
_DIFFERS = re.compile(r" differs? from (?:its|their) peers(?! in [a-z ]{1,30}, at )")


def with_detail(answer: Diagnosis, findings: Iterable[Finding]) -> Diagnosis:
    """Return the answer with a detail in its headline, such as the device, peer or value concerned.

    A headline that already names a place and the ranks is usually unchanged.
    """
    if answer.headline == NO_SYMPTOM:
        last = next(
            (step for one in findings if one.code == "job.progress" and (step := _STEP.fullmatch(one.summary))), None
        )
        headline = NO_SYMPTOM.replace(";", f" (the {last[1]});") if last else NO_SYMPTOM
        return answer.model_copy(update={"headline": headline})
    if _NAMES_A_PLACE.search(answer.headline) and answer.culprits.ranks and not _DIFFERS.search(answer.headline):
        return _with_values(answer, findings)
    findings, where = list(findings), not (answer.culprits.ranks or answer.culprits.hosts)
    if answer.verdict is Verdict.DIAGNOSED and (added := detail(answer.evidence, findings, where=where)):
        first = answer.headline if answer.culprits.hosts else capital(answer.headline)
        is_told = added in answer.headline or (answer.culprits.ranks and added.startswith("rank"))
        more = _of_others(answer, findings) or _of_input(answer, findings)
        if more and not is_told and more not in added:
            added = f"{added}; {more}"
        headline = f"{answer.headline if is_told else f'{first} ({added})'}{_how_suspects_ended(answer)}"
    elif len(answer.suspects) == 1 and (added := _of_suspect(answer, findings)):
        headline = _UNPLACED.sub(lambda end: f"{end[1]} ({added}){end[2]}", answer.headline, count=1)
    elif (open_ := _NOTHING.fullmatch(answer.headline)) and (added := detail(answer.evidence, findings, where=where)):
        before = f"{capital(added)}; {open_[1][0].lower()}{open_[1][1:]}"
        headline = before if added.startswith(("rank", "a rank")) else f"{answer.headline} ({added})"
    elif answer.verdict is Verdict.DIAGNOSED and (ended := _how_suspects_ended(answer)):
        headline = f"{answer.headline}{ended}"
    else:
        headline = answer.headline
    return answer.model_copy(update={"headline": _with_possible(headline, answer, findings)})


def _with_values(answer: Diagnosis, findings: Iterable[Finding]) -> Diagnosis:
    """An answer whose headline names a place, with sizes, types or operations of which nothing is said yet."""
    claims = [claim for claim in answer.evidence if claim.finding in _OF_VALUES]
    added = detail(claims, findings) if answer.verdict is Verdict.DIAGNOSED else ""
    is_full = _WAITED_FOR.search(answer.headline) or len(answer.headline) > _LONG
    if not added or added in answer.headline or is_full:
        return answer
    return answer.model_copy(update={"headline": f"{answer.headline} ({added})"})


def _with_possible(headline: str, answer: Diagnosis, findings: Iterable[Finding]) -> str:
    """A headline that ends in a possible cause, with what the evidence of that cause tells."""
    before, possible, title = headline.rpartition("; one possibility: ")
    if not possible or title != answer.causes[0].title:
        return headline
    behind = [claim for claim in answer.evidence if claim.claim in answer.causes[0].supports]
    added = detail(behind, findings).removeprefix(f"{rank_list(answer.culprits.ranks)} ")
    is_told = added in before or _words(added) <= _words(headline) or added.startswith(("rank", "a rank"))
    return headline if is_told else f"{headline} ({added})"


def _of_suspect(answer: Diagnosis, findings: Iterable[Finding]) -> str:
    """What the headline of an open answer adds to its suspect: nothing that it says already."""
    suspect = answer.suspects[0]
    added = detail([*suspect.evidence, *answer.evidence], findings).removeprefix(f"{rank_list(suspect.ranks)} ")
    beside = added.startswith("rank") and _timed_out(suspect.ranks, findings)
    beside = beside or (suspect.event is SuspectEvent.ENDED and added.startswith(("exited", "killed")))
    return "" if beside or _words(added) <= _words(answer.headline) else added


def _of_others(answer: Diagnosis, findings: Iterable[Finding]) -> str:
    """`ranks 1-3 timed out in all_reduce (collective 1)`, if these are others and the headline does not say so yet."""
    added = detail([claim for claim in answer.evidence if claim.finding == _TIMEOUT], findings)
    own = _WAITED_FOR.search(answer.headline) or _timed_out(answer.culprits.ranks, findings)
    return added if added.startswith("rank") and not own else ""


def _of_input(answer: Diagnosis, findings: Iterable[Finding]) -> str:
    """`waits 0.251 s a step for its data`, of a rank that is late."""
    own = [one for one in findings if one.code == _INPUT and set(one.ranks) == {*answer.culprits.ranks}]
    added = detail([claim for claim in answer.evidence if claim.finding == _INPUT], own)
    return "" if added in answer.headline else added


def _timed_out(ranks: Iterable[int], findings: Iterable[Finding]) -> bool:
    return any(one.code == _TIMEOUT and {*one.ranks} & {*ranks} for one in findings)


def _how_suspects_ended(answer: Diagnosis) -> str:
    """`; rank 11 raised RuntimeError at train.py:402`, for a cause that blames no rank; empty if that is not seen."""
    if len(answer.suspects) != 1:
        return ""
    suspect = answer.suspects[0]
    blamed = {*answer.culprits.ranks}
    if blamed and (not {*suspect.ranks} < blamed or _NAMES_A_PLACE.search(answer.headline)):
        return ""
    place = f" at {suspect.locations[0].short()}" if suspect.locations else ""
    if suspect.event is SuspectEvent.SILENT and suspect.ranks:
        return f"; {rank_list(suspect.ranks)} left no report"
    how = _ended_how(suspect)
    return f"; {rank_list(suspect.ranks, nobody=_NOBODY)}{how}{place}" if how else ""


def with_headline(said: Diagnosis, waits: Waits, seats: Mapping[int, Seat]) -> Diagnosis:
    """An answer whose headline tells who and where, whether or not its cause is known."""
    if said.verdict is Verdict.DIAGNOSED:
        told = _of_cause(said, waits, seats)
    elif said.verdict is Verdict.UNDECIDED:
        told = _of_open(said, waits)
    else:
        told = ""
    return said.model_copy(update={"headline": told}) if told else said


def _of_cause(said: Diagnosis, waits: Waits, seats: Mapping[int, Seat]) -> str:
    """Whom the cause blames, and the cause; nothing if it blames no ranks, or nothing shows what they do."""
    ranks, title = said.culprits.ranks, said.causes[0].title
    if not ranks:
        return ""
    suspect = next((one for one in said.suspects if sorted(one.ranks) == ranks), None)
    if suspect is None:
        known = [seats[rank] for rank in ranks if rank in seats]
        hosts = sorted({seat.host for seat in known if seat.host})
        places = said.culprits.locations[:1]
        suspect = Suspect(ranks=ranks, event=SuspectEvent.OUTSIDE, hosts=hosts, seats=known, says="", locations=places)
        if waits.roots.clear or not doing_of(waits.graph, ranks):
            # What the graph knows of them is not why they are to blame.
            place = f" at {places[0].short()}" if places else ""
            return f"{_who(suspect, waits)}{place}{who_waits(waits.graph, ranks)}: {title}"[:_LONGEST]
    return f"{_sentence(suspect, waits)}: {title}"[:_LONGEST]


def _of_open(said: Diagnosis, waits: Waits) -> str:
    """Who is suspected, or where all waiting ends in nothing that is known; and what the cause may be."""
    suspects = [one for one in said.suspects if one.ranks or _ended_how(one)]
    # That a rank crashed or its program raised is no possibility beside how it ended.
    pages = load_playbooks().causes
    first = next((one for one in said.causes if not (one.id in pages and pages[one.id].residual)), None)
    if first and first.id in pages and not _KINDS_OF_END & {*pages[first.id].symptoms} and _all_ended(suspects):
        first = None  # what makes a job slow or its numbers wrong ended no rank
    possible = f"; one possibility: {first.title}" if first else ""
    if suspects:
        told = ". ".join(_perhaps(one, _sentence(one, waits)) for one in suspects[:2])
        possible = possible if first and not _weighty(first.title) <= _weighty(told) else ""
        return f"{told}; cause undecided{possible}"
    if waits.brief_s is not None and not said.suspects:
        roots, victims = set(waits.roots.ranks), set(waits.roots.victims)
        at_work, whom = ("is", "it") if len(roots) == 1 else ("are", "them")
        wait = f"{rank_list(victims)} {'have' if len(victims) > 1 else 'has'} waited for {whom} for only"
        again = "run ddx why again in a minute"
        return f"{capital(rank_list(roots))} {at_work} at work, and {wait} {waits.brief_s:.0f} s: {again}"
    open_ = waits.roots.open
    if said.suspects or waits.moving or not open_ or not _NOTHING.fullmatch(said.headline):
        return ""
    waiting = set(waits.roots.victims)
    if not waiting:
        return ""
    who = rank_list(waiting)
    if open_.startswith(who):
        return capital(open_) + possible
    words = {each.words for each in waits.graph.operations.values()}
    where = f" in {words.pop()}" if len(words) == 1 else f" in {len(words)} operations"
    return f"{capital(who)} {'wait' if len(waiting) > 1 else 'waits'}{where}; {open_}{possible}"


def _all_ended(suspects: Sequence[Suspect]) -> bool:
    return bool(suspects) and all(one.event is SuspectEvent.ENDED for one in suspects)


def _who(suspect: Suspect, waits: Waits) -> str:
    return capital(seated(suspect, one_host=is_on_one_host(waits.graph)))


def _sentence(suspect: Suspect, waits: Waits) -> str:
    """`Rank 3 (node-9) is sleeping at loader.py:14 load; ranks 0-2 wait for it in all_reduce`."""
    who, graph = _who(suspect, waits), waits.graph
    ended = suspect.event is SuspectEvent.ENDED
    place = f" at {suspect.locations[0].short()}" if suspect.locations else ""
    if how := _ended_how(suspect):
        how = f"{how[:-1]}{place})" if how.endswith(")") else f"{how}{place}"
        told = f"{who}{how}{who_waits(graph, suspect.ranks)}"
    elif suspect.says.startswith(f"{who} ") and any(one.ranks == suspect.ranks for one in waits.suspects):
        told = _placed(suspect.says[:_LONGEST].rstrip("."), suspect)
    else:
        words = words_of(suspect)
        doing = "" if ended else doing_of(graph, suspect.ranks)
        comma = "," if place and suspect.event in (SuspectEvent.OUTSIDE, SuspectEvent.ABSENT) else ""
        differing = suspect.event is SuspectEvent.MISMATCHED and not place and _COMPARED.fullmatch(suspect.says)
        sizes = f": {differing['sizes'] or suspect.says.rstrip('.')}" if differing else ""
        told = f"{who} {doing or words + comma + place + sizes}{who_waits(graph, suspect.ranks)}"
    return _with_caller(told, suspect)


def _placed(sentence: str, suspect: Suspect) -> str:
    """The sentence about a suspect whose call differs from its peers', with the line of that call."""
    first, semicolon, rest = sentence.partition(";")
    if suspect.event is not SuspectEvent.MISMATCHED or not suspect.locations or " at " in first:
        return sentence
    return f"{first}, at {suspect.locations[0].short()}{semicolon}{rest}"


def _ended_how(suspect: Suspect) -> str:
    """How a suspect ended, ` raised ValueError`; empty if it did not, or if that is not known."""
    if suspect.event is not SuspectEvent.ENDED:
        return ""
    says = suspect.says
    for who in (rank_list(suspect.ranks, nobody=_NOBODY), _NOBODY):
        says = says.removeprefix(capital(who))
    if how := _ENDED.fullmatch(says):
        return str(how["how"])
    # What is known of one of several ranks is said of that one.
    some = _RANKS.match(says)
    if some and (how := _ENDED.fullmatch(says[some.end() :])):
        return f" ended ({some[0].lower()}{how['how']})"
    return ""


def _with_caller(told: str, suspect: Suspect) -> str:
    """A sentence in which the rank and its peers are at one line, with the line above at which their stacks part."""
    places = [place.short() for place in suspect.locations]
    if len(places) < 2 or told.count(f" at {places[0]}") < 2:
        return told
    return told.replace(f" at {places[0]}", f" at {places[0]} (from {places[1]})", 1)


def _perhaps(suspect: Suspect, told: str) -> str:
    """The sentence about a suspect, worded for one that may be innocent."""
    if suspect.certainty is not Certainty.LIKELY:
        return told
    who = re.match(r"Ranks? [^(]*?(?:\([^)]*\) )?(?=[a-z])", told)
    it = "it" if len(suspect.ranks) == 1 else "they"
    return f"{who[0]}may hold the job up: {it} {told[who.end() :]}" if who else told


def _weighty(text: str) -> set[str]:
    """The words of a text that are more than articles and prepositions."""
    return {word for word in _words(text) if len(word) > 3}


def _words(text: str) -> set[str]:
    return set(text.lower().split())
