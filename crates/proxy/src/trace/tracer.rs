//! The data plane's end of traces.
//!
//! What is kept is in the box of what the access log wants of a request, and goes to whoever exports
//! traces through a bounded channel, as records of the access log do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::context::{Context, Fields, PARENT, SAMPLED, STATE, Trace, new_span};
use crate::access::Record;
use crate::message::Request;

/// Traced requests that may wait to be exported.
const QUEUE: usize = 4096;

/// Longest `tracestate` that is kept, in bytes.
const MAX_STATE: usize = 512;

/// The data plane's end of traces.
#[derive(Clone, Debug)]
pub struct Tracer {
    sender: SyncSender<Record<'static>>,
    /// A random number below this is a request that is traced.
    threshold: u64,
    lost: Arc<AtomicU64>,
}

impl Tracer {
    /// Returns a tracer that traces a `share` of requests, from 0 to 1; and the end from which the
    /// traces are to be exported. Traces for which there is no room are counted as `lost`.
    pub fn new_channel(share: f64, lost: Arc<AtomicU64>) -> (Tracer, Receiver<Record<'static>>) {
        let (sender, receiver) = sync_channel(QUEUE);
        let tracer = Tracer {
            sender,
            threshold: 0,
            lost,
        };
        (tracer.with_share(share), receiver)
    }

    /// Returns the same tracer with another share.
    #[must_use]
    pub fn with_share(self, share: f64) -> Self {
        // A float beyond the range becomes its bound.
        let threshold = (share * (1u64 << 63) as f64) as u64;
        Tracer { threshold, ..self }
    }

    /// Hands a traced request over.
    pub(crate) fn send_record(&self, record: Record<'static>) {
        if self.sender.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Decides whether a request is traced. Returns the trace, if it is, and the fields that its
    /// member is told. What clients say counts if they are `trusted`.
    pub(crate) fn begin_trace(
        &self,
        request: &Request<'_>,
        trusted: bool,
        rng: &mut fastrand::Rng,
    ) -> (Option<Trace>, Fields) {
        let mut said = request.values(PARENT);
        let (first, second) = (said.next(), said.next());
        let there_is = first.is_some();
        let parent = first.filter(|_| trusted && second.is_none());
        let parent = parent.and_then(Context::parse);
        let mut trace = Trace::default();
        match parent {
            Some(parent) if parent.flags & SAMPLED == 0 => return (None, Fields::default()),
            Some(parent) => {
                trace.id = parent.trace;
                trace.parent = Some(parent.span);
                trace.flags = parent.flags & 3;
                trace.state = read_state(request);
            }
            None => {
                // The lower half decides, as it does elsewhere.
                let low = rng.u64(..);
                let sampled = low >> 1 < self.threshold;
                let drops = Fields {
                    drops_parent: there_is,
                    drops_state: true,
                    parent: None,
                };
                if !sampled {
                    return (None, drops);
                }
                let high = rng.u64(..).to_be_bytes();
                for (byte, new) in trace
                    .id
                    .iter_mut()
                    .zip(high.into_iter().chain(low.to_be_bytes()))
                {
                    *byte = new;
                }
                trace.flags = SAMPLED;
            }
        }
        trace.span = new_span(rng);
        trace.current = new_span(rng);
        let fields = Fields {
            drops_parent: there_is,
            drops_state: parent.is_none(),
            parent: Some(trace.member_context().to_bytes()),
        };
        (Some(trace), fields)
    }
}

/// Returns the value of `tracestate`, if it is not too long and all of it can be read.
fn read_state(request: &Request<'_>) -> Option<Box<str>> {
    let mut all = String::new();
    for value in request.values(STATE) {
        let value = std::str::from_utf8(value).ok()?;
        if all.len() + value.len() + 1 > MAX_STATE || !value.is_ascii() {
            return None;
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(value);
    }
    (!all.is_empty()).then(|| all.into())
}

#[cfg(test)]
mod tests {
    use super::super::context::trace_text;
    use super::*;
    use crate::message::tests::with_request;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn begin(head: &str, share: f64, trusted: bool) -> (Option<Trace>, Fields) {
        let (tracer, _records) = Tracer::new_channel(share, Arc::default());
        let mut rng = fastrand::Rng::with_seed(7);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        with_request(&head, |request| {
            tracer.begin_trace(request, trusted, &mut rng)
        })
    }

    #[test]
    fn a_trusted_client_decides_and_others_do_not() {
        let head = format!("traceparent: {GOOD}\r\ntracestate: a=b\r\nTraceState: c=d\r\n");
        let (trace, fields) = begin(&head, 0.0, true);
        let trace = trace.unwrap();
        assert_eq!(
            trace.parent,
            Some([0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7])
        );
        assert_eq!(trace.state.as_deref(), Some("a=b,c=d"));
        let told = Context::parse(&fields.parent.unwrap()).unwrap();
        assert_eq!((told.trace, told.span), (trace.id, trace.current));
        assert!(fields.drops_parent && !fields.drops_state);
        assert_ne!(trace.span, trace.current);
        // It says no, which counts as well; what it said stays.
        let not = head.replace("-01\r\n", "-00\r\n");
        let (trace, fields) = begin(&not, 1.0, true);
        assert!(trace.is_none());
        assert_eq!(fields, Fields::default());
        // A stranger.
        let (trace, fields) = begin(&head, 1.0, false);
        let trace = trace.unwrap();
        assert!(trace.parent.is_none() && trace.state.is_none());
        assert_ne!(trace_text(trace.id), GOOD[3..35]);
        assert!(fields.drops_parent && fields.drops_state);
        let (trace, fields) = begin(&head, 0.0, false);
        assert!(trace.is_none() && fields.parent.is_none());
        assert!(fields.drops_parent && fields.drops_state);
        // Two of them are none.
        let (trace, _) = begin(&format!("{head}traceparent: {GOOD}\r\n"), 0.0, true);
        assert!(trace.is_none());
    }

    #[test]
    fn the_share_of_requests_is_the_one_wanted() {
        let (tracer, _records) = Tracer::new_channel(0.25, Arc::default());
        let mut rng = fastrand::Rng::with_seed(1);
        let traced = (0..10_000).filter(|_| {
            with_request("GET / HTTP/1.1\r\nHost: a\r\n\r\n", |request| {
                tracer.begin_trace(request, false, &mut rng).0.is_some()
            })
        });
        let traced = traced.count();
        assert!((2300..2700).contains(&traced), "{traced}");
        for (share, wanted) in [(0.0, false), (1.0, true)] {
            assert_eq!(begin("", share, false).0.is_some(), wanted);
        }
    }
}
