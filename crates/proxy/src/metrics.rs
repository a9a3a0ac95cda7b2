//! Counters of the data plane.
//!
//! Every worker has its own cells for every rule and is the only one that writes them,
//! so counting is a plain load and store: no locked instruction, no cache line that
//! two cores fight for. A scrape adds the cells up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_core::binding::BindingEnd;
use evenkeel_manager::config::Protocol;
use evenkeel_manager::exposition::TIME_LIMITS;
use evenkeel_manager::subsystem::RuleTraffic;

use crate::access::Limit;
use crate::http2::grpc::CallStatus;

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Only the worker that owns the cell may call this: two writers would lose counts.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// Times that clients waited: number of waits up to each of [`TIME_LIMITS`], and of longer ones.
#[derive(Debug, Default)]
pub struct Waits {
    counts: [Counter; TIME_LIMITS.len() + 1],
    nanos: Counter,
}

impl Waits {
    #[inline]
    pub(crate) fn add_wait(&self, waited: Duration) {
        let limit = TIME_LIMITS.partition_point(|limit| *limit < waited);
        if let Some(count) = self.counts.get(limit) {
            count.add(1);
        }
        self.nanos.add(waited.as_nanos() as u64);
    }
}

/// The sum of [`Waits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotals {
    counts: [u64; TIME_LIMITS.len() + 1],
    nanos: u64,
}

impl WaitTotals {
    fn add_waits(&mut self, waits: &Waits) {
        for (sum, count) in self.counts.iter_mut().zip(&waits.counts) {
            *sum += count.get();
        }
        self.nanos += waits.nanos.get();
    }

    /// Returns each limit in seconds, with the number of waits that were longer than the limit
    /// before and no longer than this one; the last limit is infinite.
    pub fn counts_by_limit(&self) -> impl Iterator<Item = (f64, u64)> {
        let limits = TIME_LIMITS.iter().map(Duration::as_secs_f64);
        limits.chain([f64::INFINITY]).zip(self.counts)
    }

    /// Returns the sum of the times, in seconds.
    pub fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos).as_secs_f64()
    }
}

/// Calls of gRPC by how they ended: a counter for each of [`CallStatus::NAMES`].
#[derive(Debug, Default)]
pub struct Calls([Counter; CallStatus::NAMES.len()]);

impl Calls {
    /// Counts a call; a call that got no status is `other`.
    pub(crate) fn count(&self, status: Option<CallStatus>) {
        let status = status.unwrap_or(CallStatus::OTHER);
        if let Some(count) = self.0.get(status.index()) {
            count.add(1);
        }
    }
}

/// The sum of [`Calls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals([u64; CallStatus::NAMES.len()]);

impl CallTotals {
    fn add_calls(&mut self, calls: &Calls) {
        for (sum, count) in self.0.iter_mut().zip(&calls.0) {
            *sum += count.get();
        }
    }

    /// True if there was no call.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Names of statuses with how many calls have ended so.
    pub fn counts_by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CallStatus::NAMES.into_iter().zip(self.0)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one worker for one rule.
        #[derive(Debug, Default)]
        pub struct RuleMetrics {
            $($(#[$doc])* pub $name: Counter,)*
            /// Times that clients waited.
            pub waits: Waits,
            /// Calls of gRPC.
            pub calls: Calls,
        }

        /// The sum over all workers for one rule, as of one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RuleTotals {
            $($(#[$doc])* pub $name: u64,)*
            /// Times that clients waited.
            pub waits: WaitTotals,
            /// Calls of gRPC.
            pub calls: CallTotals,
            /// Protocol of the rule.
            pub protocol: Option<Protocol>,
        }

        impl RuleTotals {
            fn add(&mut self, cell: &RuleMetrics) {
                $(self.$name += cell.$name.get();)*
                self.waits.add_waits(&cell.waits);
                self.calls.add_calls(&cell.calls);
            }

            /// All counters with their names, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Client connections accepted.
    connections,
    /// Client connections ended; accepted minus ended are open.
    connections_closed,
    /// Requests whose head was read whole and understood (TCP rules: none).
    requests,
    /// Final responses sent with a status of 200 to 299, or 101.
    responses_2xx,
    /// Final responses sent with a status of 300 to 399.
    responses_3xx,
    /// Final responses sent with a status of 400 to 499, the proxy's own included.
    responses_4xx,
    /// Final responses sent with a status of 500 to 599, the proxy's own included.
    responses_5xx,
    /// Bytes received from clients.
    bytes_from_clients,
    /// Bytes sent to clients.
    bytes_to_clients,
    /// Connections opened to members.
    member_connects,
    /// Connections to members that failed or took too long to open.
    member_connect_failures,
    /// Requests that used a connection to a member that was open already.
    member_connections_reused,
    /// Further tries for the same request or connection.
    retries,
    /// Further tries that the retry budget forbade.
    retries_over_budget,
    /// Retries that were impossible, as the body of the request was not kept.
    retries_without_body,
    /// Requests that were sent to a second member, as the first one took long.
    hedges_sent,
    /// Requests sent to a second member whose response was that of the second member.
    hedges_won,
    /// Requests that were not sent to a second member, as too many others had been.
    hedges_over_budget,
    /// Copies of requests that were sent to other groups.
    mirror_sent,
    /// Copies of requests that got no whole response.
    mirror_failed,
    /// Copies that were not made: the requests ask for another protocol, or for a 100 (Continue).
    mirror_unsuited,
    /// Copies that were not sent, as the body was too large.
    mirror_too_large,
    /// Copies that were not sent, as the body did not come to its end.
    mirror_incomplete,
    /// Copies that were not sent, as too many copies were under way.
    mirror_busy,
    /// Copies that were not sent, as the group had no member below its limit for the
    /// copy.
    mirror_no_member,
    /// Copies that were not sent, as the process had no memory or files left.
    mirror_exhausted,
    /// Requests that went to the first group of their model.
    models_matched,
    /// Times that requests went to another group of their model, as the group before had no member that works, or has
    /// refused or failed the request.
    models_fallback,
    /// Requests for models that no group is for.
    models_other,
    /// Requests that named no model.
    models_missing,
    /// Requests that may name several models.
    models_ambiguous,
    /// Requests with a name of a model that is too long or not understood.
    models_unknown,
    /// Requests whose body is compressed, so that the model is not known.
    models_compressed,
    /// Requests whose model was not read in time, or not among the bytes that are read.
    models_unread,
    /// Requests in whose bodies the name of a model was replaced.
    aliases_rewritten,
    /// Requests that were refused, as the name of the model cannot be read or replaced.
    aliases_refused,
    /// Groups whose models were listed for a client.
    model_lists_joined,
    /// Groups that were left out of a list, as no member could be asked.
    model_lists_no_member,
    /// Groups that were left out of a list, as no member has sent a list in time.
    model_lists_failed,
    /// Responses that were compressed with zstd.
    encoded_zstd,
    /// Responses that were compressed with Brotli.
    encoded_brotli,
    /// Responses that were compressed with gzip.
    encoded_gzip,
    /// Bytes of bodies before they were compressed.
    bytes_before_encoding,
    /// Bytes of bodies after that.
    bytes_after_encoding,
    /// Clients that were bound anew because of a load alert.
    moved_alert,
    /// Clients that were bound anew because their time with the member was over.
    moved_interval,
    /// Clients that were bound anew because their member was down, taken out or gone.
    moved_unusable,
    /// Requests that a cookie has taken to the member that it names.
    sticky_kept,
    /// Clients that got a cookie, as they had none that names a member.
    sticky_bound,
    /// Clients that got another cookie, as another member has answered.
    sticky_moved,
    /// Cookies that name no member: of a member that has gone, of another key, or forged.
    sticky_unknown,
    /// Idle connections that a load alert has closed.
    closed_by_alert,
    /// Client connections cut because the client was silent or took no data.
    client_timeouts,
    /// Requests or connections ended because a member did not answer in time.
    member_timeouts,
    /// Requests that were malformed or ambiguous (status 400, 413, 414, 431, 501, 505).
    refused_malformed,
    /// HTTP: a request for which there is no route and no group.
    refused_no_route,
    /// HTTP: a request for a host that the client has to connect for.
    refused_misdirected,
    /// Preflights of pages that were granted what they asked for.
    preflights_granted,
    /// Preflights of pages that were not.
    preflights_refused,
    /// HTTP: a request whose body is larger than allowed.
    refused_too_large,
    /// Requests or connections refused because no member may be used.
    refused_no_member,
    /// Requests or connections refused because the queue for a member was full.
    refused_queue_full,
    /// Requests or connections refused because they waited too long in that queue.
    refused_queue_timeout,
    /// Requests or connections refused because their group was overloaded.
    refused_overload,
    /// Requests refused because the first token of an engine would come too late.
    refused_late_first_token,
    /// Requests for WebSocket refused because members do not take it over HTTP/2.
    refused_no_websocket,
    /// Connections refused because they came from no proxy that says who the client is.
    refused_not_proxied,
    /// Connections refused because their PROXY header is missing, wrong or late.
    refused_proxy_header,
    /// Requests or connections refused because this process, or machine, had no file, port
    /// or memory left for them.
    refused_exhausted,
    /// Requests or connections refused because the rule is in maintenance.
    refused_maintenance,
    /// Requests of users with the right password, and those that a group has let pass.
    auth_passed,
    /// Requests refused because they have no user and password.
    auth_missing,
    /// Requests refused because there is no such user, or the password is wrong.
    auth_wrong,
    /// Requests refused because too many passwords were being compared.
    auth_busy,
    /// Requests that a group has not let pass.
    auth_refused,
    /// Requests refused because no member of the group has said whether they may pass.
    auth_failed,
    /// Requests refused because their client has sent too many, by the limit in `limits`.
    limited_requests,
    /// Connections refused because their client has too many.
    limited_connections,
    /// Connections refused because their client has opened too many.
    limited_new_connections,
    /// Requests whose body came too slowly.
    limited_min_body_rate,
    /// Responses that were taken too slowly.
    limited_min_response_rate,
    /// Connections of TCP that were cut since they were too old.
    limited_max_lifetime,
    /// Datagrams received from clients.
    udp_datagrams_in,
    /// Datagrams sent to clients.
    udp_datagrams_out,
    /// Datagrams dropped because there was no room for another session.
    udp_dropped_full,
    /// Datagrams dropped because their session was refused: by a limit, for want of a member, or
    /// since the rule is in maintenance or ends.
    udp_dropped_refused,
    /// Datagrams and answers that the system did not send.
    udp_dropped_unsent,
    /// Pauses of flows for want of bandwidth.
    bandwidth_pauses,
    /// Responses cut in the middle, or requests failed, by a member.
    member_failures,
    /// Requests or connections that the client gave up.
    client_aborts,
    /// Connections cut because their rule was disabled or the grace period was over.
    terminated,
    /// Client connections that speak HTTP/2.
    http2_connections,
    /// Connections of HTTP/2 that were closed because of streams opened and reset.
    http2_flood_resets,
    /// Connections of HTTP/2 that were closed because of PING, SETTINGS, WINDOW_UPDATE and the
    /// like.
    http2_flood_control,
    /// Connections of HTTP/2 that were closed because of heads that are too large, or in too many
    /// parts.
    http2_flood_headers,
    /// Connections of HTTP/2 that were closed because of DATA that is empty, or next to it.
    http2_flood_data,
    /// Responses of members that could not be read.
    bad_responses,
    /// Connections of HTTP/2 to members that were closed since no sign of life came.
    http2_silent_members,
    /// Handshakes of TLS that were whole.
    tls_full,
    /// Handshakes of TLS that resumed a session.
    tls_resumed,
    /// Handshakes that failed: nothing in common.
    tls_incompatible,
    /// Handshakes that failed: no certificate for the name that was asked for.
    tls_unknown_name,
    /// Clients that sent HTTP where TLS was expected.
    tls_plain_http,
    /// Clients that sent something else, or broke the protocol.
    tls_garbage,
    /// Handshakes that failed: a message was too long.
    tls_oversized,
    /// Handshakes that failed: the client's certificate is missing or not good.
    tls_client_certificate,
    /// Handshakes that the client refused.
    tls_refused_by_client,
    /// Clients that went away in the middle of a handshake.
    tls_closed,
    /// Handshakes that took too long.
    tls_timeout,
    /// Handshakes that failed for a reason here.
    tls_internal,
    /// FTP data connections that clients opened and sent data on.
    ftp_passive_in,
    /// FTP data connections that clients opened and got data on, or on which nothing was sent.
    ftp_passive_out,
    /// FTP data connections that members opened and clients sent data on.
    ftp_active_in,
    /// FTP data connections that members opened and clients got data on, or on which nothing was
    /// sent.
    ftp_active_out,
    /// Bytes received from FTP clients on data connections.
    ftp_data_bytes_in,
    /// Bytes sent to FTP clients on data connections.
    ftp_data_bytes_out,
    /// Bytes received from FTP clients on control connections.
    ftp_control_bytes_in,
    /// Bytes sent to FTP clients on control connections.
    ftp_control_bytes_out,
    /// FTP sessions ended because a line of the client was too long.
    ftp_long_line,
    /// Lines of FTP clients that are no command.
    ftp_malformed,
    /// Commands of FTP clients that name an address that is not their own.
    ftp_bounce,
    /// Replies of FTP members that were not understood.
    ftp_member_reply,
    /// FTP sessions ended because no port was free for a data connection.
    ftp_no_port,
    /// FTP data connections refused because they came from a stranger.
    ftp_foreign,
    /// FTP data connections that nobody opened in time.
    ftp_unconnected,
    /// Access log records lost because the writer was behind.
    access_log_dropped,
}

impl RuleMetrics {
    /// Counts a client that was bound to another member, and why.
    pub(crate) fn count_move(&self, why: BindingEnd) {
        match why {
            BindingEnd::Alert => self.moved_alert.add(1),
            BindingEnd::Interval => self.moved_interval.add(1),
            BindingEnd::Gone | BindingEnd::Unusable | BindingEnd::Backup => {
                self.moved_unusable.add(1)
            }
            // A group that was changed to ask for every request.
            BindingEnd::PerRequest => {}
        }
    }

    /// Counts a request or connection that is not served because of a limit.
    pub(crate) fn count_limit(&self, limit: Limit) {
        match limit {
            Limit::Requests => self.limited_requests.add(1),
            Limit::Connections => self.limited_connections.add(1),
            Limit::NewConnections => self.limited_new_connections.add(1),
            Limit::MinBodyRate => self.limited_min_body_rate.add(1),
            Limit::MinResponseRate => self.limited_min_response_rate.add(1),
            Limit::MaxLifetime => self.limited_max_lifetime.add(1),
        }
    }

    /// Counts a final response, or a switch of protocols, that was sent.
    #[inline]
    pub(crate) fn count_status(&self, status: u16) {
        match status {
            ..300 => self.responses_2xx.add(1),
            300..400 => self.responses_3xx.add(1),
            400..500 => self.responses_4xx.add(1),
            _ => self.responses_5xx.add(1),
        }
    }
}

/// The counters of all rules of all workers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    cells: Arc<Mutex<BTreeMap<Arc<str>, OfRule>>>,
    limits: Arc<Mutex<BTreeMap<NamedLimit, Arc<AtomicU64>>>>,
}

/// A limit of requests: the names of its rule and of itself.
pub(crate) type NamedLimit = (Arc<str>, Arc<str>);

/// The cells of a rule, one per worker.
type Cells = Vec<Arc<RuleMetrics>>;

#[derive(Debug)]
struct OfRule {
    cells: Cells,
    protocol: Protocol,
    /// Time since which nobody counts in the cells: the rule is gone, and its last connection, too.
    unused: Option<Instant>,
}

/// Time for which the counts of a rule that is gone are shown: long enough for the last look of
/// whoever collects them.
const KEPT: Duration = Duration::from_secs(300);

/// Forgets the counts of rules that have been gone for [`KEPT`] at `now`, with all their connections.
fn forget_old_rules(cells: &mut BTreeMap<Arc<str>, OfRule>, now: Instant) {
    cells.retain(|_, rule| {
        let is_used = rule.cells.iter().any(|cell| Arc::strong_count(cell) > 1);
        if is_used {
            rule.unused = None;
            return true;
        }
        let since = *rule.unused.get_or_insert(now);
        now.saturating_duration_since(since) < KEPT
    });
}

impl Metrics {
    /// The sums per rule, by the rule's name. Rules that are gone keep their counts for some
    /// minutes after their last connection.
    pub fn rule_totals(&self) -> BTreeMap<Arc<str>, RuleTotals> {
        self.totals_at(Instant::now())
    }

    fn totals_at(&self, now: Instant) -> BTreeMap<Arc<str>, RuleTotals> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        forget_old_rules(&mut cells, now);
        cells
            .iter()
            .map(|(rule, of)| {
                let mut totals = RuleTotals {
                    protocol: Some(of.protocol),
                    ..RuleTotals::default()
                };
                of.cells.iter().for_each(|cell| totals.add(cell));
                (Arc::clone(rule), totals)
            })
            .collect()
    }

    /// Returns the traffic of each rule: the requests and connections that came, that ended, and
    /// that failed.
    pub(crate) fn rule_traffic(&self) -> Vec<RuleTraffic> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let of_rule = |(rule, OfRule { cells, .. }): (&Arc<str>, &OfRule)| {
            let sum = |counters: &[fn(&RuleMetrics) -> &Counter]| -> u64 {
                let of = |cell: &Arc<RuleMetrics>| -> u64 {
                    counters.iter().map(|counter| counter(cell).get()).sum()
                };
                cells.iter().map(of).sum()
            };
            let failed = sum(&[|cell| &cell.responses_5xx]);
            let others = sum(&[
                |cell| &cell.responses_2xx,
                |cell| &cell.responses_3xx,
                |cell| &cell.responses_4xx,
            ]);
            RuleTraffic {
                rule: Arc::clone(rule),
                requests: [sum(&[|cell| &cell.requests]), failed + others, failed],
                connections: [
                    sum(&[|cell| &cell.connections]),
                    sum(&[|cell| &cell.connections_closed]),
                    sum(&[
                        |cell| &cell.refused_no_member,
                        |cell| &cell.refused_queue_full,
                        |cell| &cell.refused_queue_timeout,
                        |cell| &cell.refused_overload,
                        |cell| &cell.refused_late_first_token,
                        |cell| &cell.refused_exhausted,
                        |cell| &cell.member_failures,
                    ]),
                ],
            }
        };
        cells.iter().map(of_rule).collect()
    }

    /// Returns the count of requests that the limit of `rule` called `label` has refused. The count
    /// is made when the limit is seen first.
    pub(crate) fn refused_counter(&self, rule: &str, label: &str) -> Arc<AtomicU64> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(limits.entry((rule.into(), label.into())).or_default())
    }

    /// Returns the counts of refused requests of all limits that there are, or were in rules whose
    /// counts are still kept.
    pub(crate) fn refused_counts(&self) -> BTreeMap<NamedLimit, u64> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|(rule, _), count| cells.contains_key(rule) || Arc::strong_count(count) > 1);
        let read = |(name, refused): (&NamedLimit, &Arc<AtomicU64>)| {
            (name.clone(), refused.load(Ordering::Relaxed))
        };
        limits.iter().map(read).collect()
    }

    /// The cells of `rule`, one per worker; made when the rule is seen first.
    pub(crate) fn rule_cells(
        &self,
        rule: &str,
        protocol: Protocol,
        workers: usize,
    ) -> (Arc<str>, Cells) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        forget_old_rules(&mut cells, Instant::now());
        if let Some(of) = cells.get_mut(rule) {
            of.protocol = protocol;
        }
        if let Some((name, of)) = cells.get_key_value(rule) {
            return (Arc::clone(name), of.cells.clone());
        }
        let name: Arc<str> = rule.into();
        let fresh: Vec<_> = (0..workers).map(|_| Arc::default()).collect();
        let of = OfRule {
            cells: fresh.clone(),
            protocol,
            unused: None,
        };
        cells.insert(Arc::clone(&name), of);
        (name, fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_up_to_their_limits() {
        let metrics = Metrics::default();
        let (_, cells) = metrics.rule_cells("web", Protocol::Http, 2);
        for (cell, waited) in [(0, 0), (1, 250), (0, 251), (1, 30_000_001)] {
            cells[cell].waits.add_wait(Duration::from_micros(waited));
        }
        let waits = metrics.rule_totals()["web"].waits;
        let counts: Vec<_> = waits
            .counts_by_limit()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(counts, [(0.000_25, 2), (0.000_5, 1), (f64::INFINITY, 1)]);
        assert!((waits.sum() - 30.000_502).abs() < 1e-9, "{}", waits.sum());
    }

    #[test]
    fn f9_counts_of_a_rule_end_some_minutes_after_its_last_connection() {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let (_, cells) = metrics.rule_cells("preview", Protocol::Http, 2);
        let limit = metrics.refused_counter("preview", "burst");
        cells[0].requests.add(3);
        let known = |seconds: u64| {
            let at = start + Duration::from_secs(seconds);
            let rules = metrics.totals_at(at).contains_key("preview");
            (rules, !metrics.refused_counts().is_empty())
        };
        assert_eq!(known(0), (true, true));
        assert_eq!(known(3600), (true, true), "a connection is left");
        drop(cells);
        drop(limit);
        assert_eq!(known(3601), (true, true));
        assert_eq!(known(3601 + 299), (true, true));
        // Whoever comes back in time goes on.
        let (_, again) = metrics.rule_cells("preview", Protocol::Http, 2);
        assert_eq!(known(3601 + 301), (true, true));
        assert_eq!(again[0].requests.get(), 3);
        drop(again);
        assert_eq!(known(5000), (true, true));
        assert_eq!(known(5000 + 301), (false, false));
    }

    #[test]
    fn totals_add_up_the_workers_and_survive_a_rule_that_comes_back() {
        let metrics = Metrics::default();
        let (_, cells) = metrics.rule_cells("web", Protocol::Http, 2);
        cells[0].requests.add(3);
        cells[1].requests.add(4);
        let (_, again) = metrics.rule_cells("web", Protocol::Http, 2);
        again[1].requests.add(1);
        let totals = metrics.rule_totals();
        assert_eq!(totals["web"].requests, 8);
        let listed: u64 = totals["web"]
            .iter()
            .find_map(|(name, value)| (name == "requests").then_some(value))
            .unwrap();
        assert_eq!(listed, 8);
    }
}
