"""The energy report as Markdown."""

from .report import COMPONENTS, METHODS, TRAINING, EnergyReport


def write_report(report: EnergyReport) -> str:
    lines = [f"**Energy**: {headline(report)}", ""]
    if report.rows:
        lines += [*_table(report), ""]
    lines += [
        f"- {line}" for line in (*_provenance(report), *(f"**Alarm**: {alarm}" for alarm in report.alarms.values()))
    ]
    return "\n".join(lines) + "\n"


def write_summary(report: EnergyReport) -> str:
    """For a card: one sentence, a small table, and behind a fold how that is known, with the alarms."""
    took = "Training, its evaluations included, took " if report.components else "Energy was "
    lines = [f"{took}{headline(report)}.", ""]
    if report.rows:
        head = ["phase", "s", "J", f"J/{report.unit}", "g CO2e"]
        lines += [f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: | ---: |"]
        for phase in report.phases:
            values = [report.seconds(phase), report.joules(phase), report.joules_per_item(phase), report.grams(phase)]
            lines.append(f"| {' | '.join([phase, *map(amount, values)])} |")
        lines.append("")
    parts = {part.name.upper(): report.joules(component=part.name) for part in report.components}
    found = [f"of it {', '.join(f'{name} {amount(joules)} J' for name, joules in parts.items())}"] if parts else []
    found += [*_provenance(report), *(f"**Alarm**: {alarm}" for alarm in report.alarms.values())]
    if found:
        alarms = f", and {len(report.alarms)} alarm{'s' * (len(report.alarms) > 1)}" if report.alarms else ""
        lines += [f"<details><summary>How this is known{alarms}</summary>", "", *(f"- {line}" for line in found), ""]
        lines.append("</details>")
    return "\n".join(lines) + "\n"


def headline(report: EnergyReport) -> str:
    """The sum in one line."""
    spent = f"{amount(report.seconds())} s"
    if not report.components:
        return f"not measured; training and evaluation took {spent}"
    grams = report.grams()
    carbon = "" if grams is None else f", {amount(grams)} g CO2e"
    net = "" if (joules := report.net_joules()) is None else f" ({kwh(joules)} net of the idle machine)"
    worst = max((part.method for part in report.components), key=list(METHODS).index)
    word = "measured" if worst == "measured" else "partly or wholly estimated"
    return f"{kwh(report.joules())}{net} in {spent}{carbon}; {word}"


def _table(report: EnergyReport) -> list[str]:
    """Epochs by phase, then the sums."""
    has_net = report.net_joules(report.phases) is not None
    head = ["epoch", "phase", "s", "CPU J", "GPU J", "RAM J", "sum J"]
    head += [*(["net J"] if has_net else []), f"J/{report.unit}", "g CO2e"]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' if name == 'phase' else '---:' for name in head)} |"]
    totals = [("", TRAINING, None, "train + eval")] + [("", phase, None, phase) for phase in report.phases]
    cells = [(str(epoch) if epoch else "", phase, epoch, phase) for phase, epoch in report.steps()]
    for label, phases, epoch, name in cells + totals:
        bold = "**" if label == "" and epoch is None else ""
        energies = [report.joules(phases, epoch, part) for part in (*COMPONENTS, "joules")]
        energies += [report.net_joules(phases, epoch)] if has_net else []
        per_item = None if phases == TRAINING else report.joules_per_item(phases, epoch)
        values = [report.seconds(phases, epoch), *energies, per_item, report.grams(phases, epoch)]
        lines.append(f"| {' | '.join([label, f'{bold}{name}{bold}', *map(amount, values)])} |")
    return lines


def _provenance(report: EnergyReport) -> list[str]:
    lines = [f"{part}, scope: {part.scope}" for part in report.components]
    if report.components:
        lines.append(f"read by {report.tracker} every {report.interval:g} s on {report.hardware}")
        if report.grams_per_kwh is not None:
            lines.append(f"CO2e: {report.grams_per_kwh:g} g/kWh, {report.location} ({report.grid})")
        else:
            lines.append(f"CO2e: not known, {report.location} ({report.grid})")
    for idle in report.baselines:
        lines.append(f"idle: {idle.watts:.4g} W, measured for {idle.seconds:.3g} s before training (rank {idle.rank})")
    if report.restarts:
        lines.append(
            f"taken up again {report.restarts} times; {kwh(report.lost)} went into work that was lost and done again, "
            "and are part of all sums, as they were spent"
        )
    if report.budget is not None:
        lines.append(f"budget: {kwh(report.budget)}{', which stopped training' if report.stopped_by_budget else ''}")
    return lines


def amount(value: float | None) -> str:
    """Four significant digits, never as a power of ten; "–" for what isn't known."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if "e" in text else text


def kwh(joules: float) -> str:
    """With a unit that fits."""
    if abs(joules) < 3600:
        return f"{joules:.4g} J"
    return f"{joules / 3600:.4g} Wh" if joules < 3.6e6 else f"{joules / 3.6e6:.4g} kWh"
