//! The tables of the page.

use maud::{Markup, html};

use crate::load::outcome::{Outcome, Percentiles};
use crate::load::units;

/// What a search for the highest load found, if there was one.
pub(super) fn capacity(outcome: &Outcome) -> Markup {
    let Some(found) = &outcome.capacity else { return Markup::default() };
    html! {
        section {
            h2 { "Capacity" }
            ul.says { @for line in &found.says { li { (line) } } }
            div.scroll { table {
                thead { tr {
                    @for name in ["× plan", "Viewers", "Comments/s", "Deliveries/s", "Delivery p99"] { th.number { (name) } }
                    th { "Verdict" }
                } }
                tbody {
                    @for tried in &found.tried {
                        tr {
                            td.number { (units::figure(tried.scale)) }
                            td.number { (units::count(tried.viewers)) }
                            td.number { (units::figure(tried.rate)) }
                            td.number { (units::short(tried.deliveries)) }
                            td.number { (tried.p99_ms.map_or_else(|| "–".to_owned(), units::millis)) }
                            td {
                                @if tried.gave_way.is_empty() { span.good { "held" } }
                                @else { span.bad { "broke" } " " (tried.gave_way.join("; ")) }
                            }
                        }
                    }
                }
            } }
            p.note { "The rest of this page is about the highest load that held, if any did." }
        }
    }
}

/// What was asked, what was measured, whether it held.
pub(super) fn objectives(outcome: &Outcome) -> Markup {
    html! {
        @if !outcome.objectives.is_empty() {
            section {
                h2 { "Objectives" }
                div.scroll { table {
                    thead { tr { th { "Objective" } th { "Measured" } th { "Verdict" } } }
                    tbody {
                        @for judged in &outcome.objectives {
                            tr {
                                td { code { (judged.objective) } }
                                td { (judged.measured) }
                                td { @if judged.is_held { span.good { "held" } } @else { span.bad { "broke" } } }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// The kinds of fault that happened, and examples of them.
pub(super) fn faults(outcome: &Outcome) -> Markup {
    let faults = &outcome.faults;
    html! {
        @if faults.total() > 0 {
            section {
                h2 { "Faults" }
                div.scroll { table {
                    thead { tr { th { "Fault" } th.number { "Count" } th { "What it means" } } }
                    tbody {
                        @for (fault, count) in faults.happened() {
                            tr {
                                td { span.bad { (fault.name()) } }
                                td.number { (units::count(count)) }
                                td { (fault.meaning()) }
                            }
                        }
                    }
                } }
                @if !faults.examples.is_empty() {
                    h3 { "Examples" }
                    div.scroll { table {
                        thead { tr { th { "Fault" } th.number { "Viewer" } th { "Room" } th { "Comment" } th { "What was seen" } } }
                        tbody {
                            @for example in &faults.examples {
                                tr {
                                    td.name { (example.fault.name()) }
                                    td.number { (example.viewer) }
                                    td.name { (example.room) }
                                    td { code { (example.id) } }
                                    td.seen { (example.detail) }
                                }
                            }
                        }
                    } }
                }
            }
        }
    }
}

/// Every latency that was measured, by percentile.
pub(super) fn latencies(outcome: &Outcome) -> Markup {
    let measured: Vec<_> = outcome.latency.named().filter_map(|(name, figures)| Some((name, figures?))).collect();
    let row = |figures: &Percentiles| {
        [
            figures.min_ms,
            figures.p50_ms,
            figures.p90_ms,
            figures.p99_ms,
            figures.p999_ms,
            figures.max_ms,
            figures.mean_ms,
        ]
        .map(units::millis)
    };
    html! {
        @if !measured.is_empty() {
            section {
                h2 { "Latencies" }
                div.scroll { table {
                    thead { tr {
                        th { "Latency" }
                        @for name in ["min", "p50", "p90", "p99", "p99.9", "max", "mean", "count"] { th.number { (name) } }
                    } }
                    tbody {
                        @for (name, figures) in &measured {
                            tr {
                                td.name { (name) }
                                @for figure in row(figures) { td.number { (figure) } }
                                td.number { (units::count(figures.count)) }
                            }
                        }
                    }
                } }
                p.note {
                    "Latencies of comments count from the time they were scheduled for, so that one that had to wait to be "
                    "sent counts its wait."
                }
            }
        }
    }
}

/// How often things happened.
pub(super) fn counts(outcome: &Outcome) -> Markup {
    let counts = &outcome.counts;
    let plain = [
        ("comments scheduled", counts.scheduled),
        ("comments sent", counts.sent),
        ("accepted", counts.accepted),
        ("stored", counts.stored),
        ("unanswered", counts.unanswered),
        ("deliveries", counts.deliveries),
        ("left out for readability", counts.left_out),
        ("missed, and told so", counts.gaps_told),
        ("60-second queries", counts.queries),
        ("connections made", counts.connected),
        ("connections failed", counts.connects_failed),
        ("reconnects", counts.reconnects),
    ];
    let coded = [
        ("refused", &counts.refused),
        ("error", &counts.errors),
        ("closed", &counts.closes),
        ("misbehaving, answered", &counts.misbehaved),
    ];
    html! {
        section {
            h2 { "Counts" }
            dl.counts {
                @for (name, count) in plain { div { dt { (name) } dd { (units::count(count)) } } }
                div { dt { "received" } dd { (units::bytes(counts.bytes_received)) } }
                @for (kind, codes) in coded {
                    @for (code, count) in codes { div { dt { (kind) ": " (code) } dd { (units::count(*count)) } } }
                }
            }
        }
    }
}

/// What ran where.
pub(super) fn environment(outcome: &Outcome) -> Markup {
    let client = &outcome.client;
    let mut rows = vec![("danmakud", format!("load {}", outcome.danmakud))];
    if let Some(server) = &outcome.server {
        rows.push(("server", server.version.clone().unwrap_or_else(|| "of unknown version".to_owned())));
        let memory = units::bytes(server.max_rss_bytes);
        rows.push(("server used", format!("{:.1} CPU seconds, at most {memory}", server.cpu_seconds)));
        let ledger = match server.ledger_balances {
            Some(true) => "balances".to_owned(),
            Some(false) => format!("does not balance; {} not stored", units::count(server.not_stored)),
            None => "could not be read".to_owned(),
        };
        rows.push(("server's ledger", ledger));
    }
    let used = format!("{:.1} CPU seconds, at most {:.2} cores", client.cpu_seconds, client.peak_cores);
    rows.push(("this client used", format!("{used} and {}", units::bytes(client.max_rss_bytes))));
    rows.push(("sent late by", format!("at most {} for 99 of 100", units::millis(client.lateness_p99_ms))));
    if let Some(machine) = &outcome.machine {
        let cores = units::plural(machine.cores, "core");
        rows.push(("machine", format!("{cores} of {}, {}", machine.cpu, units::bytes(machine.memory_bytes))));
        rows.push(("system", machine.kernel.clone()));
    }
    html! {
        section {
            h2 { "Environment" }
            dl { @for (name, value) in &rows { div { dt { (name) } dd { (value) } } } }
        }
    }
}

/// How to run it again, and with what.
pub(super) fn repeat(outcome: &Outcome) -> Markup {
    let plan = serde_json::to_string_pretty(&outcome.plan).unwrap_or_default();
    html! {
        section {
            h2 { "Run it again" }
            @if !outcome.command.is_empty() { pre { code { (shell(&outcome.command)) } } }
            @if !outcome.plan.is_null() {
                details { summary { "The whole plan" } pre { code { (plan) } } }
            }
        }
    }
}

/// A command as a shell takes it; where its program is on this machine does not matter elsewhere.
fn shell(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%@+".contains(c);
    let program = words.first().and_then(|word| word.rsplit('/').next());
    let words = program.into_iter().chain(words.iter().skip(1).map(String::as_str));
    let quoted = words.map(|word| match word {
        plain if !plain.is_empty() && plain.chars().all(is_plain) => plain.to_owned(),
        other => format!("'{}'", other.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words =
            ["/opt/bin/danmakud", "load", "--objective", "p99=200ms,lost=0", "my profile.toml", "it's", "$(rm)", ""];
        assert_eq!(
            shell(&words.map(str::to_owned)),
            r"danmakud load --objective p99=200ms,lost=0 'my profile.toml' 'it'\''s' '$(rm)' ''"
        );
    }
}
