//! The right of a balancer to be the load manager, where several share one state: it ends by
//! itself unless it is renewed in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::time::Instant;
use tokio::sync::watch;

/// Time after its last renewal in which the store takes no other owner, in whole seconds.
pub const LIFETIME: Duration = Duration::from_secs(8);

/// Part of [`LIFETIME`] at its end in which the owner serves no more: clocks of machines go
/// differently fast, and a thread may be late.
const MARGIN: Duration = Duration::from_secs(2);

/// Time from one renewal to the next: several may fail before the right ends.
const EVERY: Duration = Duration::from_secs(1);

/// Time up to which a right that was renewed by a message of `sent` holds. The store counts from
/// when the message came, which was later.
pub fn end_after(sent: Instant) -> Instant {
    sent.after(LIFETIME - MARGIN)
}

/// Time of the next renewal after one that was sent at `sent`.
pub fn due_after(sent: Instant) -> Instant {
    sent.after(EVERY)
}

/// A right to serve. All who serve by it ask [`ServingRight::holds_at`] before each answer.
#[derive(Debug)]
pub struct ServingRight {
    /// Nanoseconds of the process's clock; 0 once it has ended for good.
    until: AtomicU64,
    ended: watch::Sender<Option<Arc<str>>>,
}

impl ServingRight {
    /// A right that holds until `until`, unless it is renewed.
    pub fn new(until: Instant) -> Arc<Self> {
        Arc::new(ServingRight {
            until: AtomicU64::new(until.as_nanos()),
            ended: watch::Sender::new(None),
        })
    }

    /// Returns true while the right holds.
    pub fn holds_at(&self, now: Instant) -> bool {
        now < self.valid_until()
    }

    /// End of the right.
    pub fn valid_until(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// Renews the right. One that has ended stays so: somebody else may have it by now.
    pub fn renew(&self, until: Instant, now: Instant) {
        let until = until.as_nanos();
        let later = |before| (before > now.as_nanos() && until > before).then_some(until);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.until.fetch_update(order.0, order.1, later);
    }

    /// Ends the right at once.
    pub fn end_now(&self, why: &str) {
        self.until.store(0, Ordering::Release);
        self.ended.send_if_modified(|said| {
            let is_first = said.is_none();
            if is_first {
                *said = Some(why.into());
            }
            is_first
        });
    }

    /// Waits until the right was [ended](ServingRight::end_now); answers why.
    pub async fn wait_for_end(&self) -> Arc<str> {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_right_ends_before_the_store_gives_it_to_others() {
        let sent = at(1000);
        let tenure = ServingRight::new(end_after(sent));
        assert!(tenure.holds_at(at(1000)) && tenure.holds_at(at(6999)));
        assert!(
            !tenure.holds_at(at(7000)),
            "the store gives it away at 9000"
        );
        // Four renewals may fail, and the fifth one is in time.
        let mut last = sent;
        let mut tries = 0;
        while due_after(last) < end_after(sent) {
            last = due_after(last);
            tries += 1;
        }
        assert_eq!(tries, 5);
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_sent() {
        let tenure = ServingRight::new(end_after(at(0)));
        tenure.renew(end_after(at(1000)), at(1200));
        assert_eq!(tenure.valid_until(), at(7000));
        // An answer that comes late takes nothing back.
        tenure.renew(end_after(at(500)), at(1300));
        assert_eq!(tenure.valid_until(), at(7000));
    }

    #[test]
    fn what_has_ended_is_not_renewed() {
        let tenure = ServingRight::new(end_after(at(0)));
        // The process stood still, and the answer was there when it went on.
        tenure.renew(end_after(at(3000)), at(6000));
        assert!(!tenure.holds_at(at(6000)) && !tenure.holds_at(at(6001)));
        let tenure = ServingRight::new(end_after(at(0)));
        tenure.end_now("another balancer has it");
        tenure.renew(end_after(at(1000)), at(1000));
        assert!(!tenure.holds_at(at(1)));
    }

    #[tokio::test]
    async fn its_end_is_told_once_with_the_first_reason() {
        let tenure = ServingRight::new(at(1000));
        tenure.end_now("first");
        tenure.end_now("second");
        assert_eq!(&*tenure.wait_for_end().await, "first");
    }
}
