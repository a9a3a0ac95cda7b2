//! Bodies that are kept while they are sent, so that the message can be sent again.

use std::sync::Arc;

use super::{Flow, Framing, JOINED_BYTES, KeepPlan};
use crate::buffer::Buffer;
use crate::memory::{HEAD_BYTES, Memory};

impl Flow {
    /// Returns the same message, whose body is kept while it is sent, unless the message says that its body is
    /// larger than `keeps` allows.
    #[cold]
    pub(in crate::http) fn keep_what_is_sent(mut self, keeps: KeepPlan) -> Self {
        let left = match self.framing {
            Framing::Done if self.ready == 0 => return self,
            Framing::Length(left) => left,
            _ => 0,
        };
        let length = left.saturating_add(self.ready as u64);
        if length <= keeps.most as u64 {
            self.keeps = Some(Box::new(keeps));
        }
        self
    }

    /// Keeps the first `len` bytes of the buffer, which were sent, behind the head. False if they are too many, or
    /// there is no memory for them: the message cannot be sent again then.
    #[cold]
    pub(super) fn keep_sent(&mut self, len: usize) -> bool {
        let Some(keeps) = &self.keeps else {
            return false;
        };
        let (most, memory) = (keeps.most, Arc::clone(&keeps.memory));
        self.copy_behind_head(len, most, &memory)
    }

    /// Copies the first `len` bytes of the buffer behind the head, of whose body there are at most `most` bytes then.
    /// False if they are too many, or there is no memory for them.
    pub(super) fn copy_behind_head(
        &mut self,
        len: usize,
        most: usize,
        memory: &Arc<Memory>,
    ) -> bool {
        let kept = self.head.len().saturating_sub(self.body_at);
        if kept.saturating_add(len) > most {
            return false;
        }
        let size = self.head.len().saturating_add(len);
        let most = self.body_at.saturating_add(most).max(size);
        if size > self.head.capacity() && !self.grow_head(size, most, memory) {
            return false;
        }
        let sent = self.buffer.as_ref().map_or(&[][..], Buffer::bytes);
        self.head
            .extend_from_slice(sent.get(..len).unwrap_or_default());
        true
    }

    /// Forgets what was kept of the body: the message is not sent again.
    #[inline]
    pub(in crate::http) fn stop_keeping(&mut self) {
        let joined = self.head.len().saturating_sub(self.body_at);
        if self.keeps.is_some() || joined > JOINED_BYTES {
            self.forget_kept();
        }
    }

    #[cold]
    pub(super) fn forget_kept(&mut self) {
        self.keeps = None;
        // After a rewind a part of what was kept may be still to be sent.
        let sent = self.written.saturating_sub(self.body_at);
        if sent > 0 {
            let (head, body) = self.head.split_at(self.body_at.min(self.head.len()));
            let left = body.get(sent..).unwrap_or_default();
            // Large memory is freed as a whole: the allocator keeps such memory for the next body then. If it is made
            // smaller instead, the system gives new pages for each body.
            let mut rest = Vec::with_capacity(HEAD_BYTES.max(head.len() + left.len()));
            rest.extend_from_slice(head);
            rest.extend_from_slice(left);
            self.head = rest;
            self.written = self.body_at;
            self.moved += sent as u64;
            if let Some(charge) = &mut self._charge {
                charge.shrink_to(self.head.capacity());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;
    use crate::http::flow::Bounds;
    use crate::http1::Body;
    use crate::io::Io;
    use crate::memory::tests::new_memory;

    #[test]
    fn what_is_kept_is_bounded_and_its_memory_is_given_back() {
        let memory = new_memory(40_000);
        let head = b"POST / HTTP/1.1\r\n\r\n".to_vec();
        let new_flow = |length, most| {
            let body = Body::Length(length);
            let flow = Flow::new(head.clone(), body, false, None, Bounds::NONE, &memory);
            flow.unwrap()
                .keep_what_is_sent(KeepPlan::new(most, &memory))
        };
        assert!(new_flow(10_001, 10_000).keeps.is_none(), "it says so");
        let mut flow = new_flow(30_000, 30_000);
        let buffers = crate::buffer::BufferPool::new(new_memory(1 << 20));
        let send = |flow: &mut Flow, len: usize| {
            let mut buffer = buffers.take();
            let mut from: &[u8] = &vec![7; len];
            let cx = &mut Context::from_waker(std::task::Waker::noop());
            assert!(buffer.poll_fill(cx, &mut from).is_ready());
            flow.written = flow.head.len();
            flow.buffer = Some(buffer);
            flow.ready = len;
            assert!(
                flow.poll_flush(cx, &mut Io::Nobody(crate::io::Nobody))
                    .is_ready()
            );
            assert!(flow.ready == 0);
        };
        send(&mut flow, 20_000);
        assert!(flow.may_rewind());
        assert_eq!(flow.body_sent(), 20_000);
        assert!(memory.take(20_001).is_err(), "it is counted");
        assert!(flow.rewind());
        assert_eq!(
            (flow.body_sent(), flow.head.len()),
            (0, head.len() + 20_000)
        );
        send(&mut flow, 5_000);
        assert_eq!((flow.body_sent(), flow.may_rewind()), (25_000, true));
        let sent = flow.sent_bytes();
        flow.stop_keeping();
        assert_eq!((flow.sent_bytes(), flow.body_sent()), (sent, 25_000));
        assert!(!flow.rewind());
        assert!(memory.take(20_000).is_ok(), "it is given back");
        // More than was said, and more than there is memory for.
        for (most, len) in [(5_000, 6_000), (100_000, 60_000)] {
            let mut flow = new_flow(4_000, most);
            send(&mut flow, len);
            assert!(!flow.may_rewind());
            assert_eq!(flow.body_sent(), len as u64);
        }
        drop(flow);
        assert!(memory.take(40_000).is_ok());
    }
}
