//! The floor: a relay on bare epoll that parses nothing.
//!
//! One thread; each client connection gets one upstream connection, and bytes are copied between the two. The cost is
//! what any proxy of this shape must pay, nearly all of it in the kernel.
//!
//! `floor LISTEN UPSTREAM [LISTEN UPSTREAM]...`

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use evenkeel_bench::epoll::{BROKEN, EDGE, END, Epoll, READ, WRITE};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addresses = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<Vec<SocketAddr>, _>>()?;
    if addresses.is_empty() || addresses.len() % 2 == 1 {
        return Err("usage: floor LISTEN UPSTREAM [LISTEN UPSTREAM]...".into());
    }
    let mut listeners = Vec::new();
    for pair in addresses.chunks_exact(2) {
        listeners.push((TcpListener::bind(pair[0])?, pair[1]));
    }
    Floor::new(listeners)?.run()?;
    Ok(())
}

/// Tokens: listeners first, then two per pair of connections (client, upstream).
struct Floor {
    epoll: Epoll,
    listeners: Vec<(TcpListener, SocketAddr)>,
    pairs: Vec<Option<[Side; 2]>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

/// A connection of a pair.
struct Side {
    stream: TcpStream,
    /// Read from the other side, not yet taken by this one.
    unsent: Vec<u8>,
    /// Has sent its last byte.
    ended: bool,
    /// The connection's FIN has been passed on.
    end_passed: bool,
}

impl Floor {
    fn new(listeners: Vec<(TcpListener, SocketAddr)>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for (index, (listener, _)) in listeners.iter().enumerate() {
            listener.set_nonblocking(true)?;
            epoll.add(listener, READ, index as u64)?;
        }
        Ok(Self {
            epoll,
            listeners,
            pairs: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; 256 * 1024],
        })
    }

    fn run(&mut self) -> io::Result<()> {
        // A pair that ends keeps its tokens until the batch is done: a later event of the
        // same batch must not meet its successor.
        let mut ended = Vec::new();
        loop {
            let count = self.epoll.wait_for_events(None)?;
            for index in 0..count {
                let (token, events) = self.epoll.event(index);
                let token = token as usize;
                if token < self.listeners.len() {
                    self.accept(token);
                    continue;
                }
                let pair = (token - self.listeners.len()) / 2;
                let side = (token - self.listeners.len()) % 2;
                if !self.relay(pair, side, events) {
                    self.pairs[pair] = None;
                    ended.push(pair);
                }
            }
            self.free.append(&mut ended);
        }
    }

    fn accept(&mut self, listener: usize) {
        let (socket, upstream) = &self.listeners[listener];
        // Not more than one: the next one is reported again (level triggered), and the
        // usual case saves the call that finds none.
        let Ok((client, _)) = socket.accept() else {
            return;
        };
        // Blocking connect: on loopback it is done when the call returns.
        let Ok(upstream) = TcpStream::connect(upstream) else {
            return;
        };
        let pair = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let sides = [Side::new(client), Side::new(upstream)];
        for (index, side) in sides.iter().enumerate() {
            let token = self.listeners.len() + 2 * pair + index;
            let ready = side
                .stream
                .set_nonblocking(true)
                .and_then(|()| side.stream.set_nodelay(true))
                .and_then(|()| {
                    self.epoll
                        .add(&side.stream, READ | WRITE | EDGE, token as u64)
                });
            if ready.is_err() {
                self.free.push(pair);
                return;
            }
        }
        self.pairs[pair] = Some(sides);
    }

    /// Handles the events of one side; `false` ends the pair.
    fn relay(&mut self, pair: usize, side: usize, events: u32) -> bool {
        let Some([client, upstream]) = &mut self.pairs[pair] else {
            return true;
        };
        let (near, far) = if side == 0 {
            (client, upstream)
        } else {
            (upstream, client)
        };
        if events & WRITE != 0 && !near.unsent.is_empty() {
            if near.flush().is_err() {
                return false;
            }
            if near.unsent.is_empty() && pump(far, near, true, &mut self.buffer).is_err() {
                return false;
            }
        }
        if events & (READ | BROKEN) != 0 {
            let to_the_end = events & (END | BROKEN) != 0;
            if pump(near, far, to_the_end, &mut self.buffer).is_err() {
                return false;
            }
        }
        !(near.end_passed && far.end_passed)
    }
}

/// Copies from one side to the other until one of them cannot go on.
///
/// A read that does not fill the buffer has taken all there was, so the call that would
/// only say so is saved, unless the end of the stream may be behind it (`to_the_end`).
fn pump(from: &mut Side, to: &mut Side, to_the_end: bool, buffer: &mut [u8]) -> io::Result<()> {
    while !from.ended && to.unsent.is_empty() {
        match from.stream.read(buffer) {
            Ok(0) => from.ended = true,
            Ok(count) => {
                to.send(&buffer[..count])?;
                if count < buffer.len() && !to_the_end {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    if from.ended && to.unsent.is_empty() && !from.end_passed {
        to.stream.shutdown(Shutdown::Write)?;
        from.end_passed = true;
    }
    Ok(())
}

impl Side {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            ended: false,
            end_passed: false,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(rest);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        self.send(&unsent)
    }
}
