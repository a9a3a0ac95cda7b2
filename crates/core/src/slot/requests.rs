//! Requests within connections, of which another program has the sums.

use std::time::Duration;

use super::Slot;
use crate::estimate::sums::RequestSums;
use crate::member::Digest;
use crate::time::Instant;

impl Slot {
    /// Digests latencies of requests within connections, of which another program has the sums.
    pub(crate) fn sample_requests(&self, sums: &RequestSums, now: Instant, digest: Digest) {
        // The filter needs each answer, and the cap was learnt by connections.
        self.filter.switch_off();
        let (latency, others) = (sums.example.0, sums.example.1 as f32);
        let places = 1.0 + digest.growth * others;
        self.estimate
            .learn_growth(latency, 1.0, others, places, &self.regression);
        let mean = sums.latency / sums.answered.max(1);
        let others = sums.others as f32 / sums.answered.max(1) as f32;
        let places = 1.0 + digest.growth * others;
        let reach = self.regression.average_reach(digest.is_weighted);
        let answers = (sums.answered, mean);
        self.estimate
            .sample_latencies(answers, places, others, now, digest.decay, reach);
        self.latency.sample(mean.as_secs_f32(), now, digest.decay);
    }

    /// Digests the latency of a connection's first answer for people only: decisions go by requests.
    #[cold]
    pub(crate) fn show_latency(&self, latency: Duration) {
        self.own_record().histogram.add_latency(latency);
    }

    /// Replaces requests that wait in another program, by words of the estimate.
    pub(crate) fn replace_awaited(&self, before: u64, after: u64) {
        self.estimate.replace_awaited(before, after);
    }
}
