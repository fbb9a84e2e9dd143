"""`fedrec audit`: every attack that fits a scenario, a table of what was claimed and what was
shown, and an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedrec.auditing import membership
from fedrec.auditing.finding import Effort, Finding
from fedrec.auditing.whole import whole_finding
from fedrec.data.interactions import Dataset
from fedrec.errors import PrivacyError, SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.report import wording
from fedrec.report.attack_claims import Attacked, claims
from fedrec.report.page import TablePage, render_table
from fedrec.run.data.datasets import beside, load_dataset, load_split
from fedrec.settings import Scenario

QUICK = Effort(draws=4_000, users=8, uploads=6)
_QUICK_RUNS = 200  # of the whole command, on each side


@dataclass(frozen=True)
class Audit:
    """All findings on one scenario."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 where no bound exceeds its claim and no step of a proof is refuted; else that of a
        privacy limit."""
        return PrivacyError.exit_code if any(finding.failed for finding in self.findings) else 0

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per attack."""
        return [dict(finding.row()) for finding in self.findings]

    def page(self, name: str) -> str:
        """Return the findings as one HTML page that needs no network. name: of the scenario."""
        failed = [finding for finding in self.findings if finding.failed]
        answer = (
            f"No attack on {name} proves more than is claimed: {len(self.findings)} of "
            f"{len(self.findings)} claims hold."
        )
        if failed:
            answer = (
                f"{len(failed)} of {len(self.findings)} claims about {name} do not hold: do not "
                "make them."
            )
        attacks = [
            Attacked(f.attack, f.claim.epsilon, None if f.by == "none" else f.measured)
            for f in self.findings
        ]
        units = sorted({f.claim.compared for f in self.findings})
        drawn = any(f.claim.private and f.by != "none" for f in self.findings)
        return render_table(
            TablePage(
                title=f"Audit of {name}",
                answer=answer,
                head=(
                    "attack",
                    "verdict",
                    "claimed ε",
                    "ε is at least",
                    "by",
                    "confidence",
                    "named (by chance)",
                    "unit",
                    "neighbours",
                ),
                rows=[_cells(finding) for finding in self.findings],
                numbers=frozenset({2, 3, 5, 6}),
                bad=bool(failed),
                chart=claims(attacks, axis=f"ε {'; '.join(units)}", name="claims")
                if drawn
                else None,
                warned=frozenset(at for at, finding in enumerate(self.findings) if finding.failed),
                notes=[
                    *_explained(self.findings),
                    *(f"{f.attack}: {f.note}" for f in self.findings if f.note),
                ],
            )
        )

    def table(self) -> str:
        """Return the findings as a table of 80 columns, what the columns mean, and why the exit
        code is not 0 where it is not."""
        head = (
            f"{'attack':23} {'per':5} {'claimed':>8} {'at least':>8} {'by':>8} {'recovered':>11} "
            " verdict"
        )
        lines = [head, *(_line(finding) for finding in self.findings), "", *_key(self.findings)]
        reasons = [f"{f.verdict}: {f.attack}: {f.note}" for f in self.findings if f.failed]
        # what was drawn over what was planned, block by block, where the whole command is attacked
        told = [f"{f.attack}: {f.note}" for f in self.findings if f.spreads and not f.failed]
        said = [*reasons, *told]
        return "\n".join([*lines, "", *said] if said else lines)


def run(
    scenario: Scenario, *, quick: bool = False, whole: bool = False, given: Dataset | None = None
) -> Audit:
    """Attack what the scenario would send and release; `whole`: all of the command, on planted
    files. Raises what reading its data raises.

    Everything comes from the scenario's seed, whatever `privacy.noise` says, so that the same audit
    twice is the same audit; but the attack on the whole command takes the noise that the scenario
    asks for. given: a data set in memory, in the place of the scenario's.
    """
    if scenario.privacy.horizon:  # attacks take releases for independent, and weeks are not
        raise SettingsError(
            "privacy.horizon: no attack knows the noise of a stream yet",
            "Leave it out: the rest of the scenario is audited.",
        )
    runs = _QUICK_RUNS if quick else 0
    if whole and scenario.learns_news:
        from fedrec.auditing.whole_news import whole_news_findings  # brings torch

        return Audit(tuple(whole_news_findings(scenario, runs=runs)))
    if whole:
        return Audit((whole_finding(scenario, runs=runs),))
    effort = QUICK if quick else Effort()
    if scenario.learns_news:
        from fedrec.auditing.news_attacks import news_findings  # brings torch

        return Audit(tuple(news_findings(scenario, effort)))
    dataset = load_dataset(scenario) if given is None else beside(given, scenario)
    split = load_split(scenario, dataset)
    prepared = prepare(scenario, public_facts(scenario.seed, dataset, split))
    found = membership.membership(
        prepared,
        split.train,
        variant=scenario.recipe,
        draws=effort.draws,
        streams=Streams(scenario.seed),
    )
    return Audit(tuple(found))


def _cells(finding: Finding) -> tuple[str, ...]:
    claim = finding.claim
    proves = finding.by != "none"
    return (
        finding.attack,
        finding.verdict,
        f"{claim.epsilon:.4g}",
        f"{finding.measured:.4g}" if proves else "–",
        finding.by if proves else "no bound",
        f"{finding.confidence:.1%}",
        "–" if finding.recovery is None else str(finding.recovery),
        claim.unit,
        claim.neighbours,
    )


def _line(finding: Finding) -> str:
    recovered = "" if finding.recovery is None else str(finding.recovery)
    measured = "-" if finding.by == "none" else f"{finding.measured:.4g}"
    claim = finding.claim
    return (
        f"{finding.attack:23} {claim.unit:5} {claim.epsilon:8.4g} {measured:>8} {finding.by:>8} "
        f"{recovered:>11}  {finding.verdict}"
    )


def _key(findings: tuple[Finding, ...]) -> list[str]:
    neighbours = " and ".join(sorted({f.claim.compared for f in findings}))
    deltas = ", ".join(f"{delta:g}" for delta in sorted({f.claim.delta for f in findings}))
    confidence = min(finding.confidence for finding in findings)
    return [
        f"epsilon at delta {deltas} {neighbours};",
        f'claimed, and "at least" as shown by the attack, each with {confidence:.1%} confidence.',
        (
            "by region: nothing assumed; gaussian, moments: of mu-GDP; laplace: of pure noise; "
            "exact, support: no"
        ),
        "estimate.",
        "recovered: share of private facts named (and by who cannot know).",
    ]


def _explained(findings: tuple[Finding, ...]) -> list[str]:
    """What the page's columns mean."""
    deltas = ", ".join(wording.power(delta) for delta in sorted({f.claim.delta for f in findings}))
    return [
        (
            f"ε at δ = {deltas}. An attack proves that ε is at least a number, with the confidence "
            "beside it. A claim holds while it is above."
        ),
        (
            "By region: without assumptions. By gaussian or moments: if the release is Gaussian. "
            "By exact or support: computed, not estimated."
        ),
        (
            "Named: the share of private facts that the attack named, and in brackets the share "
            "that somebody without the release names."
        ),
    ]
