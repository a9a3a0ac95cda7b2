//! Messages that share their bytes: copies of a request for several mirrors.

use std::rc::Rc;

use super::Flow;
use crate::http::copy::Copy;

impl Flow {
    /// Returns a message that is all there. Other messages have the same bytes.
    pub(in crate::http) fn of_shared_copy(copy: &Rc<Copy>) -> Self {
        let mut flow = Flow::new_whole(Vec::new(), copy.body_at(), None);
        flow.shared = Some(Rc::clone(copy));
        flow
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::http::copy::CopyPlan;
    use crate::memory::tests::new_memory;

    #[test]
    fn shared_bytes_are_counted_once_until_the_last_message_ends() {
        let memory = new_memory(100);
        let plan = CopyPlan {
            most: 50,
            memory: Arc::clone(&memory),
        };
        let mut copy = plan.begin_copy(b"POST / HTTP/1.1\r\n\r\n", "", 50).unwrap();
        copy.add_body(&[b'x'; 50]).unwrap();
        let copy = Rc::new(copy);
        let flows = [&copy, &copy, &copy].map(Flow::of_shared_copy);
        drop(copy);
        for mut flow in flows {
            assert!(memory.take(100).is_err());
            assert!(flow.is_read() && flow.is_untouched() && !flow.is_flushed());
            flow.set_sent();
            assert!(flow.is_flushed());
            assert_eq!(flow.body_sent(), 50);
            assert!(flow.rewind() && flow.body_sent() == 0);
        }
        assert!(memory.take(100).is_ok());
    }
}
