//! Metrics of the data plane in `/metrics` and in the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_manager::config::Protocol;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::status::{LimitsStatus, RuleLimitStatus, Status};

use crate::access::Limit;
use crate::metrics::{NamedLimit, RuleTotals};
use crate::plane::Proxy;
use crate::quota::Fill;

/// A family of counters of a rule.
struct RuleFamily {
    name: &'static str,
    /// Protocol of the rules that have it; `None` is all.
    only: Option<Protocol>,
    help: &'static str,
    /// Label beside `rule`; empty if there is none.
    label: &'static str,
    /// Values of that label, each with the source of its count.
    samples: &'static [(&'static str, Read)],
}

type Read = fn(&RuleTotals) -> u64;

const RULE_FAMILIES: &[RuleFamily] = &[
    RuleFamily {
        name: "evenkeel_rule_connections_total",
        only: None,
        help: "Client connections accepted.",
        label: "",
        samples: &[("", |totals| totals.connections)],
    },
    RuleFamily {
        name: "evenkeel_rule_connections_closed_total",
        only: None,
        help: "Client connections ended.",
        label: "",
        samples: &[("", |totals| totals.connections_closed)],
    },
    RuleFamily {
        name: "evenkeel_rule_requests_total",
        only: Some(Protocol::Http),
        help: "HTTP requests with a valid head.",
        label: "",
        samples: &[("", |totals| totals.requests)],
    },
    RuleFamily {
        name: "evenkeel_rule_responses_total",
        only: Some(Protocol::Http),
        help: "Final HTTP responses sent to clients, by class of their status (101 counts as 2xx).",
        label: "class",
        samples: &[
            ("2xx", |totals| totals.responses_2xx),
            ("3xx", |totals| totals.responses_3xx),
            ("4xx", |totals| totals.responses_4xx),
            ("5xx", |totals| totals.responses_5xx),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_bytes_total",
        only: None,
        help: "Bytes received from clients (in) and sent to them (out).",
        label: "direction",
        samples: &[
            ("in", |totals| totals.bytes_from_clients),
            ("out", |totals| totals.bytes_to_clients),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_member_connections_total",
        only: None,
        help: "Connections to members: opened, failed to open, or reused from the pool.",
        label: "result",
        samples: &[
            ("opened", |totals| totals.member_connects),
            ("failed", |totals| totals.member_connect_failures),
            ("reused", |totals| totals.member_connections_reused),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_retries_total",
        only: None,
        help: "Retries of requests and connections, and retries that the retry budget did not allow.",
        label: "result",
        samples: &[
            ("tried", |totals| totals.retries),
            ("over_budget", |totals| totals.retries_over_budget),
            ("body_not_kept", |totals| totals.retries_without_body),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_hedges_total",
        only: Some(Protocol::Http),
        help: "Requests sent to a second member because the first one took long (hedging), those that the second member answered first, and those that the budget did not allow.",
        label: "result",
        samples: &[
            ("sent", |totals| totals.hedges_sent),
            ("won", |totals| totals.hedges_won),
            ("over_budget", |totals| totals.hedges_over_budget),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_mirrored_total",
        only: Some(Protocol::Http),
        help: "Copies of requests sent to other groups, and those of them that got no whole response.",
        label: "result",
        samples: &[
            ("sent", |totals| totals.mirror_sent),
            ("failed", |totals| totals.mirror_failed),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_mirror_skipped_total",
        only: Some(Protocol::Http),
        help: "Copies of requests that were not sent though they should have been.",
        label: "reason",
        samples: &[
            ("unsuited", |totals| totals.mirror_unsuited),
            ("too_large", |totals| totals.mirror_too_large),
            ("incomplete", |totals| totals.mirror_incomplete),
            ("busy", |totals| totals.mirror_busy),
            ("no_member", |totals| totals.mirror_no_member),
            ("exhausted", |totals| totals.mirror_exhausted),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_models_total",
        only: Some(Protocol::Http),
        help: "Requests whose body was read for the name of a model, by what came of it.",
        label: "result",
        samples: &[
            ("matched", |totals| totals.models_matched),
            ("fallback", |totals| totals.models_fallback),
            ("other", |totals| totals.models_other),
            ("missing", |totals| totals.models_missing),
            ("ambiguous", |totals| totals.models_ambiguous),
            ("unknown", |totals| totals.models_unknown),
            ("compressed", |totals| totals.models_compressed),
            ("unread", |totals| totals.models_unread),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_model_aliases_total",
        only: Some(Protocol::Http),
        help: "Requests for aliases of models, by what came of it.",
        label: "result",
        samples: &[
            ("rewritten", |totals| totals.aliases_rewritten),
            ("refused", |totals| totals.aliases_refused),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_model_lists_total",
        only: Some(Protocol::Http),
        help: "Groups that were asked for their models, for lists of all models, by what came of it.",
        label: "result",
        samples: &[
            ("joined", |totals| totals.model_lists_joined),
            ("no_member", |totals| totals.model_lists_no_member),
            ("failed", |totals| totals.model_lists_failed),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_compressed_total",
        only: Some(Protocol::Http),
        help: "Responses that were compressed, by coding.",
        label: "coding",
        samples: &[
            ("zstd", |totals| totals.encoded_zstd),
            ("br", |totals| totals.encoded_brotli),
            ("gzip", |totals| totals.encoded_gzip),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_compressed_bytes_total",
        only: Some(Protocol::Http),
        help: "Bytes of the bodies of compressed responses, before and after.",
        label: "side",
        samples: &[
            ("before", |totals| totals.bytes_before_encoding),
            ("after", |totals| totals.bytes_after_encoding),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_timeouts_total",
        only: None,
        help: "Requests or connections ended because one side was silent for too long.",
        label: "side",
        samples: &[
            ("client", |totals| totals.client_timeouts),
            ("member", |totals| totals.member_timeouts),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_refused_total",
        only: None,
        help: "Requests or connections that were refused.",
        label: "reason",
        samples: &[
            ("malformed", |totals| totals.refused_malformed),
            ("no_route", |totals| totals.refused_no_route),
            ("too_large", |totals| totals.refused_too_large),
            ("misdirected", |totals| totals.refused_misdirected),
            ("no_member", |totals| totals.refused_no_member),
            ("queue_full", |totals| totals.refused_queue_full),
            ("queue_timeout", |totals| totals.refused_queue_timeout),
            ("overload", |totals| totals.refused_overload),
            ("late_first_token", |totals| totals.refused_late_first_token),
            ("no_websocket", |totals| totals.refused_no_websocket),
            ("not_proxied", |totals| totals.refused_not_proxied),
            ("proxy_header", |totals| totals.refused_proxy_header),
            ("exhausted", |totals| totals.refused_exhausted),
            ("maintenance", |totals| totals.refused_maintenance),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_preflights_total",
        only: Some(Protocol::Http),
        help: "Preflights of pages of other origins that the balancer answered, by result.",
        label: "result",
        samples: &[
            ("granted", |totals| totals.preflights_granted),
            ("refused", |totals| totals.preflights_refused),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_auth_total",
        only: Some(Protocol::Http),
        help: "Requests to routes with `auth`, by result.",
        label: "result",
        samples: &[
            ("passed", |totals| totals.auth_passed),
            ("missing", |totals| totals.auth_missing),
            ("wrong", |totals| totals.auth_wrong),
            ("busy", |totals| totals.auth_busy),
            ("refused", |totals| totals.auth_refused),
            ("failed", |totals| totals.auth_failed),
        ],
    },
    RuleFamily {
        name: LIMITED,
        only: None,
        help: "Requests or connections refused or ended because their client has reached a limit.",
        label: "limit",
        samples: &[
            ("requests", |totals| totals.limited_requests),
            ("connections", |totals| totals.limited_connections),
            ("new_connections", |totals| totals.limited_new_connections),
            ("min_body_rate", |totals| totals.limited_min_body_rate),
            ("min_response_rate", |totals| {
                totals.limited_min_response_rate
            }),
            ("max_lifetime", |totals| totals.limited_max_lifetime),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_bandwidth_pauses_total",
        only: None,
        help: "Pauses of connections because a limit on bandwidth was reached.",
        label: "",
        samples: &[("", |totals| totals.bandwidth_pauses)],
    },
    RuleFamily {
        name: "evenkeel_rule_cut_total",
        only: None,
        help: "Requests or connections that ended early: because of a failing member, a client that went away, or the end of the rule or the process.",
        label: "by",
        samples: &[
            ("member", |totals| totals.member_failures),
            ("client", |totals| totals.client_aborts),
            ("evenkeel", |totals| totals.terminated),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_moved_total",
        only: None,
        help: "Clients that were moved from one member to another, by reason.",
        label: "reason",
        samples: &[
            ("alert", |totals| totals.moved_alert),
            ("interval", |totals| totals.moved_interval),
            ("unusable", |totals| totals.moved_unusable),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_sticky_total",
        only: Some(Protocol::Http),
        help: "Answered requests of groups that bind clients by a cookie: kept with the member that it names, bound to one, or moved to another one; and cookies that name no member (unknown).",
        label: "result",
        samples: &[
            ("kept", |totals| totals.sticky_kept),
            ("bound", |totals| totals.sticky_bound),
            ("moved", |totals| totals.sticky_moved),
            ("unknown", |totals| totals.sticky_unknown),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_closed_by_alert_total",
        only: None,
        help: "Idle connections that were closed because of a load alert.",
        label: "",
        samples: &[("", |totals| totals.closed_by_alert)],
    },
    RuleFamily {
        name: "evenkeel_rule_http2_connections_total",
        only: Some(Protocol::Http),
        help: "Client connections that speak HTTP/2.",
        label: "",
        samples: &[("", |totals| totals.http2_connections)],
    },
    RuleFamily {
        name: "evenkeel_rule_http2_floods_total",
        only: Some(Protocol::Http),
        help: "HTTP/2 connections closed because the client sent too many frames or bytes of one kind.",
        label: "of",
        samples: &[
            ("resets", |totals| totals.http2_flood_resets),
            ("control_frames", |totals| totals.http2_flood_control),
            ("headers", |totals| totals.http2_flood_headers),
            ("empty_data", |totals| totals.http2_flood_data),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_bad_responses_total",
        only: Some(Protocol::Http),
        help: "Responses of members that could not be read.",
        label: "",
        samples: &[("", |totals| totals.bad_responses)],
    },
    RuleFamily {
        name: "evenkeel_rule_http2_silent_members_total",
        only: Some(Protocol::Http),
        help: "HTTP/2 connections to members that were closed because the member sent nothing after a PING.",
        label: "",
        samples: &[("", |totals| totals.http2_silent_members)],
    },
    RuleFamily {
        name: "evenkeel_rule_tls_handshakes_total",
        only: None,
        help: "TLS handshakes with clients: full, or resuming a session.",
        label: "kind",
        samples: &[
            ("full", |totals| totals.tls_full),
            ("resumed", |totals| totals.tls_resumed),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_tls_failures_total",
        only: None,
        help: "TLS handshakes with clients that failed, by cause.",
        label: "cause",
        samples: &[
            ("incompatible", |totals| totals.tls_incompatible),
            ("unknown_name", |totals| totals.tls_unknown_name),
            ("plain_http", |totals| totals.tls_plain_http),
            ("garbage", |totals| totals.tls_garbage),
            ("oversized", |totals| totals.tls_oversized),
            ("client_certificate", |totals| totals.tls_client_certificate),
            ("refused_by_client", |totals| totals.tls_refused_by_client),
            ("closed", |totals| totals.tls_closed),
            ("timeout", |totals| totals.tls_timeout),
            ("internal", |totals| totals.tls_internal),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_ftp_data_connections_total",
        only: Some(Protocol::Ftp),
        help: "FTP data connections that have ended, by who opened them and where the data went: passive are opened by clients, active by members.",
        label: "kind",
        samples: &[
            ("passive_in", |totals| totals.ftp_passive_in),
            ("passive_out", |totals| totals.ftp_passive_out),
            ("active_in", |totals| totals.ftp_active_in),
            ("active_out", |totals| totals.ftp_active_out),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_ftp_bytes_total",
        only: Some(Protocol::Ftp),
        help: "Bytes of FTP rules from clients (in) and to them (out), on control and data connections; data is counted when its connection ends.",
        label: "of",
        samples: &[
            ("control_in", |totals| totals.ftp_control_bytes_in),
            ("control_out", |totals| totals.ftp_control_bytes_out),
            ("data_in", |totals| totals.ftp_data_bytes_in),
            ("data_out", |totals| totals.ftp_data_bytes_out),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_ftp_refused_total",
        only: Some(Protocol::Ftp),
        help: "FTP sessions, commands, replies of members and data connections that were refused.",
        label: "reason",
        samples: &[
            ("long_line", |totals| totals.ftp_long_line),
            ("malformed", |totals| totals.ftp_malformed),
            ("bounce", |totals| totals.ftp_bounce),
            ("member_reply", |totals| totals.ftp_member_reply),
            ("no_port", |totals| totals.ftp_no_port),
            ("foreign", |totals| totals.ftp_foreign),
            ("unconnected", |totals| totals.ftp_unconnected),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_datagrams_total",
        only: Some(Protocol::Udp),
        help: "Datagrams of UDP rules received from clients (in) and sent to them (out).",
        label: "direction",
        samples: &[
            ("in", |totals| totals.udp_datagrams_in),
            ("out", |totals| totals.udp_datagrams_out),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_datagrams_dropped_total",
        only: Some(Protocol::Udp),
        help: "Datagrams of UDP rules that were dropped: no room for another session (full), session refused by a limit or for want of a member (refused), or not sent by the system (unsent).",
        label: "reason",
        samples: &[
            ("full", |totals| totals.udp_dropped_full),
            ("refused", |totals| totals.udp_dropped_refused),
            ("unsent", |totals| totals.udp_dropped_unsent),
        ],
    },
    RuleFamily {
        name: "evenkeel_rule_access_log_dropped_total",
        only: None,
        help: "Access log records dropped because the writer was too slow.",
        label: "",
        samples: &[("", |totals| totals.access_log_dropped)],
    },
];

impl Proxy {
    /// Fills in where rules really listen (the configuration may leave the port to the
    /// system), and how open files and memory are shared out.
    pub(crate) fn fill_status(&self, status: &mut Status) {
        for rule in &mut status.rules {
            for address in &mut rule.listen {
                let wanted = address.parse().ok();
                let real = wanted.and_then(|wanted| self.local_address(&rule.name, wanted));
                if let Some(real) = real {
                    *address = real.to_string();
                }
            }
        }
        status.limits = self.limits_status();
        let totals = self.metrics().rule_totals();
        for (rule, fills) in self.quota_fills() {
            let known = status.rules.iter_mut().find(|known| *known.name == *rule);
            let (Some(known), Some(totals)) = (known, totals.get(&rule)) else {
                continue;
            };
            known.limits = fills
                .iter()
                .map(|fill| limit_status(fill, totals))
                .collect();
        }
    }

    fn limits_status(&self) -> Option<LimitsStatus> {
        let (clients, clients_open) = self.client_counts();
        let (files, memory) = self.shares()?;
        Some(LimitsStatus {
            files: files.all,
            files_reserved: files.reserve(),
            clients,
            clients_open,
            memory: memory.memory_bound.all,
            memory_reserved: memory.reserve,
        })
    }

    /// Writes the metrics of the data plane.
    pub(crate) fn write_families(&self, out: &mut Exposition) {
        write_limits(out, self.limits_status().as_ref());
        write_rules(
            out,
            &self.metrics().rule_totals(),
            &self.metrics().refused_counts(),
        );
        write_quotas(out, &self.quota_fills());
    }
}

/// The family in which limits of requests are counted by their names.
const LIMITED: &str = "evenkeel_rule_limited_total";

fn write_limits(out: &mut Exposition, limits: Option<&LimitsStatus>) {
    let of = |read: fn(&LimitsStatus) -> u64| limits.map(read);
    let gauges = [
        (
            "evenkeel_files_limit",
            "Maximum number of files that the process may open.",
            of(|limits| limits.files as u64),
        ),
        (
            "evenkeel_files_reserved",
            "Files reserved for health checks, reports, the admin API and reloads.",
            of(|limits| limits.files_reserved as u64),
        ),
        (
            "evenkeel_memory_limit_bytes",
            "Memory limit of this process.",
            of(|limits| limits.memory),
        ),
        (
            "evenkeel_memory_reserved_bytes",
            "Memory reserved for health checks, reports, the admin API and reloads.",
            of(|limits| limits.memory_reserved),
        ),
        (
            "evenkeel_clients_limit",
            "Maximum number of clients of all rules together, by the limits on open files and memory.",
            of(|limits| limits.clients as u64),
        ),
        (
            "evenkeel_clients_open",
            "Clients of all rules now.",
            of(|limits| limits.clients_open as u64),
        ),
    ];
    for (name, help, value) in gauges {
        out.begin_family(name, Type::Gauge, help);
        if let Some(value) = value {
            out.add_sample(&[], value as f64);
        }
    }
}

fn write_rules(
    out: &mut Exposition,
    totals: &BTreeMap<Arc<str>, RuleTotals>,
    limits: &BTreeMap<NamedLimit, u64>,
) {
    out.begin_family(
        "evenkeel_rule_connections_open",
        Type::Gauge,
        "Client connections that are open.",
    );
    for (rule, totals) in totals {
        // The two are not read at the same instant.
        let open = totals.connections.saturating_sub(totals.connections_closed);
        out.add_sample(&[("rule", rule)], open as f64);
    }
    out.begin_family(
        "evenkeel_rule_wait_seconds",
        Type::Histogram,
        "Time that clients wait, with the queue and retries: HTTP from the end of a request's head until its response begins, TCP until a member is connected.",
    );
    for (rule, totals) in totals {
        let waits = &totals.waits;
        out.add_histogram(&[("rule", rule)], waits.counts_by_limit(), waits.sum());
    }
    out.begin_family(
        "evenkeel_rule_grpc_calls_total",
        Type::Counter,
        "Calls of gRPC that have ended, by the status that the client got; other is a status that is no code, or no status. Only for rules that had calls.",
    );
    for (rule, totals) in totals.iter().filter(|(_, totals)| !totals.calls.is_empty()) {
        for (status, count) in totals.calls.counts_by_status() {
            out.add_sample(&[("rule", &**rule), ("status", status)], count as f64);
        }
    }
    for family in RULE_FAMILIES {
        out.begin_family(family.name, Type::Counter, family.help);
        let has_family = |totals: &RuleTotals| {
            // A rule that is gone, or has another protocol now, keeps what it has counted.
            let is_counted = || family.samples.iter().any(|(_, read)| read(totals) > 0);
            family.only.is_none() || family.only == totals.protocol || is_counted()
        };
        for (rule, totals) in totals.iter().filter(|(_, totals)| has_family(totals)) {
            for (value, read) in family.samples {
                let labels = [("rule", &**rule), (family.label, value)];
                let labels = if family.label.is_empty() {
                    &labels[..1]
                } else {
                    &labels
                };
                out.add_sample(labels, read(totals) as f64);
            }
        }
        if family.name == LIMITED {
            for ((rule, limit), refused) in limits {
                out.add_sample(&[("rule", rule), ("limit", limit)], *refused as f64);
            }
        }
    }
}

fn limit_status(fill: &Fill, totals: &RuleTotals) -> RuleLimitStatus {
    RuleLimitStatus {
        limit: fill.label.to_string().into(),
        rate: fill.requests.as_ref().map(|(rate, _)| rate.clone()),
        key: fill.requests.as_ref().map(|(_, key)| key.to_string()),
        clients: fill.clients,
        refused: fill.refused.unwrap_or(match fill.limit {
            Limit::Requests => totals.limited_requests,
            Limit::Connections => totals.limited_connections,
            Limit::NewConnections => totals.limited_new_connections,
            Limit::MinBodyRate => totals.limited_min_body_rate,
            Limit::MinResponseRate => totals.limited_min_response_rate,
            Limit::MaxLifetime => totals.limited_max_lifetime,
        }),
        lifted: fill.lifted,
    }
}

fn write_quotas(out: &mut Exposition, rules: &[(Arc<str>, Vec<Fill>)]) {
    out.begin_family(
        "evenkeel_rule_limit_clients",
        Type::Gauge,
        "Clients that are remembered for a limit.",
    );
    for (rule, fills) in rules {
        for fill in fills {
            let labels = [("rule", &**rule), ("limit", &*fill.label)];
            out.add_sample(&labels, fill.clients as f64);
        }
    }
    out.begin_family(
        "evenkeel_rule_limit_lifted_total",
        Type::Counter,
        "How often a client was forgotten, or not remembered, because the table of a limit was full.",
    );
    for (rule, fills) in rules {
        for fill in fills {
            let labels = [("rule", &**rule), ("limit", &*fill.label)];
            out.add_sample(&labels, fill.lifted as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_data_plane_is_shown() {
        let shown: usize = RULE_FAMILIES
            .iter()
            .map(|family| family.samples.len())
            .sum();
        assert_eq!(shown, RuleTotals::default().iter().count());
    }

    #[test]
    fn d17_a_rule_has_the_counters_of_its_protocol() {
        let of = |protocol, ftp_bounce| RuleTotals {
            protocol: Some(protocol),
            ftp_bounce,
            ..RuleTotals::default()
        };
        let all = [
            ("files", of(Protocol::Ftp, 0)),
            ("web", of(Protocol::Http, 0)),
            ("mail", of(Protocol::Tcp, 0)),
            ("was_ftp", of(Protocol::Tcp, 1)),
        ];
        let totals = all.map(|(rule, totals)| (Arc::from(rule), totals)).into();
        let mut out = Exposition::default();
        write_rules(&mut out, &totals, &BTreeMap::new());
        let text = out.finish();
        let has = |family: &str, rule: &str| text.contains(&format!("{family}{{rule=\"{rule}\""));
        for (family, [files, web, mail, was_ftp]) in [
            ("evenkeel_rule_ftp_bytes_total", [true, false, false, false]),
            (
                "evenkeel_rule_ftp_refused_total",
                [true, false, false, true],
            ),
            ("evenkeel_rule_requests_total", [false, true, false, false]),
            ("evenkeel_rule_connections_total", [true, true, true, true]),
        ] {
            let found = ["files", "web", "mail", "was_ftp"].map(|rule| has(family, rule));
            assert_eq!(found, [files, web, mail, was_ftp], "{family}");
        }
    }
}
