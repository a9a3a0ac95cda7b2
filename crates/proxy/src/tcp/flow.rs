//! Flow of one direction of a tunnel.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::buffer::Buffer;
use crate::io::{Io, TransferError};
use crate::pipe::Pipe;
use crate::worker::Worker;

/// Reads in a row that fill the buffer before a flow is spliced: a bulk transfer, for
/// which a pipe pays. Small messages never need one.
const FULL_READS: u8 = 2;

/// A spliced flow whose calls move less than this goes back to reads and writes...
const SMALL_SPLICE: usize = 4096;

/// Number of such calls in a row after which a flow goes back to reads and writes.
const SMALL_SPLICES: u8 = 16;

/// Bytes that a flow moves before others get their turn.
pub(crate) const TURN_BYTES: u64 = 2 << 20;

/// Direction of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    stage: Stage,
    /// Bytes that have reached the receiver's socket.
    pub(crate) moved: u64,
    streak: u8,
}

#[derive(Debug, Default)]
enum Stage {
    /// Nothing waits to be written; no buffer is held.
    #[default]
    Empty,
    Copying(Buffer),
    /// Bulk. A pipe is held only while there are bytes in it.
    Splicing(Option<Pipe>),
    /// The end is being passed on.
    Ending,
    /// The end was passed on, or nothing more can be written.
    Ended,
}

impl Flow {
    /// True if nothing is on its way, and the sender has not ended.
    pub(super) fn is_calm(&self) -> bool {
        matches!(self.stage, Stage::Empty | Stage::Splicing(None))
    }

    /// A flow that begins with bytes that were read already.
    pub(crate) fn with_read(read: Option<Buffer>) -> Self {
        Flow {
            stage: read.map_or(Stage::Empty, Stage::Copying),
            ..Flow::default()
        }
    }

    /// True if the receiver does not take the bytes that it should.
    pub(super) fn is_blocked(&self) -> bool {
        match &self.stage {
            // Perhaps in the transport.
            Stage::Copying(_) | Stage::Ending => true,
            Stage::Splicing(pipe) => pipe.is_some(),
            Stage::Empty | Stage::Ended => false,
        }
    }

    pub(crate) fn release_buffers(&mut self, worker: &Worker) {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Copying(buffer) => worker.buffers.give_back(buffer),
            Stage::Splicing(Some(pipe)) => worker.pipes.give_back(pipe),
            Stage::Splicing(None) | Stage::Empty | Stage::Ending | Stage::Ended => {}
        }
    }

    /// Moves what can be moved, about `most` bytes before others get their turn; ready when the flow
    /// has ended. If `most` is 0, nothing is done, and nothing wakes the task.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        to: &mut Io,
        worker: &Worker,
        most: u64,
    ) -> Poll<Result<(), TransferError>> {
        if most == 0 {
            return Poll::Pending;
        }
        let turn = self.moved + most;
        loop {
            if self.moved >= turn {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match &mut self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                // `shutdown` of a socket never waits, and that of a broken one is none.
                Stage::Ending => {
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.stage = Stage::Ended;
                }
                Stage::Empty => {
                    let mut buffer = worker.buffers.take();
                    match buffer.poll_fill(cx, from) {
                        Poll::Pending => {
                            worker.buffers.give_back(buffer);
                            return Poll::Pending;
                        }
                        Poll::Ready(Err(error)) => {
                            worker.buffers.give_back(buffer);
                            return Poll::Ready(Err(TransferError::of_error(
                                &error,
                                TransferError::From,
                            )));
                        }
                        Poll::Ready(Ok(0)) => {
                            worker.buffers.give_back(buffer);
                            self.stage = Stage::Ending;
                        }
                        Poll::Ready(Ok(_)) => {
                            self.streak = if buffer.is_full() { self.streak + 1 } else { 0 };
                            self.stage = Stage::Copying(buffer);
                        }
                    }
                }
                Stage::Copying(buffer) => {
                    while !buffer.is_empty() {
                        match ready!(Pin::new(&mut *to).poll_write(cx, buffer.bytes())) {
                            Ok(n) if n > 0 => {
                                buffer.consume(n);
                                self.moved += n as u64;
                            }
                            Ok(_) => return self.break_flow(worker, TransferError::To),
                            Err(error) => {
                                return self.break_flow(
                                    worker,
                                    TransferError::of_error(&error, TransferError::To),
                                );
                            }
                        }
                    }
                    if let Err(error) = ready!(Pin::new(&mut *to).poll_flush(cx)) {
                        return self.break_flow(
                            worker,
                            TransferError::of_error(&error, TransferError::To),
                        );
                    }
                    self.release_buffers(worker);
                    let splices = from.prepare_splice() && to.prepare_splice();
                    self.stage = if self.streak >= FULL_READS && splices {
                        self.streak = 0;
                        Stage::Splicing(None)
                    } else {
                        Stage::Empty
                    };
                }
                Stage::Splicing(held) => {
                    let pipe = held.take().or_else(|| worker.take_pipe());
                    let (Some(from), Some(into), Some(mut pipe)) =
                        (from.spliceable_socket(), to.spliceable_socket(), pipe)
                    else {
                        // No more files: copying does, too.
                        self.stage = Stage::Empty;
                        continue;
                    };
                    if pipe.held_bytes() == 0 {
                        let most = usize::try_from(most).unwrap_or(usize::MAX);
                        let filled = pipe.poll_fill(cx, from, most);
                        let Poll::Ready(Ok(n @ 1..)) = filled else {
                            worker.pipes.give_back(pipe);
                            if let Err(error) = ready!(filled) {
                                return Poll::Ready(Err(TransferError::of_error(
                                    &error,
                                    TransferError::From,
                                )));
                            }
                            self.stage = Stage::Ending;
                            continue;
                        };
                        self.streak = if n < SMALL_SPLICE { self.streak + 1 } else { 0 };
                    }
                    while pipe.held_bytes() > 0 {
                        match pipe.poll_drain(cx, into) {
                            Poll::Ready(Ok(n)) => self.moved += n as u64,
                            Poll::Ready(Err(error)) => {
                                return self.break_flow(
                                    worker,
                                    TransferError::of_error(&error, TransferError::To),
                                );
                            }
                            Poll::Pending => {
                                *held = Some(pipe);
                                return Poll::Pending;
                            }
                        }
                    }
                    worker.pipes.give_back(pipe);
                    if self.streak >= SMALL_SPLICES {
                        self.streak = 0;
                        self.stage = Stage::Empty;
                    }
                }
            }
        }
    }

    fn break_flow(
        &mut self,
        worker: &Worker,
        broken: TransferError,
    ) -> Poll<Result<(), TransferError>> {
        self.release_buffers(worker);
        Poll::Ready(Err(broken))
    }
}
