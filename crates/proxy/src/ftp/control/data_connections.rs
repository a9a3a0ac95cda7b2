//! Data connections of a session: opened as commands want it, and ended with the session.

use std::io;
use std::rc::Rc;
use std::task::Poll;

use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_wire::ftp::{Mode, Opening};
use tokio::net::TcpListener;

use super::{Control, Problem};
use crate::ftp::data::{self, Data, Stage, Waiting};
use crate::ftp::ports;

/// Data connections that may be open: one, and one before it whose last bytes are on their way.
const MAX_OPEN: usize = 2;

impl Control<'_> {
    /// Ends the data connection that nobody has opened.
    pub(super) fn close_waiting(&mut self) {
        let waiting = self
            .data
            .iter()
            .filter(|data| data.current_stage() == Stage::Waiting);
        waiting.for_each(|data| data.stop());
    }

    /// Prepares a data connection.
    pub(super) fn open_data(&mut self, opening: Opening) -> Result<(), Problem> {
        self.close_waiting();
        self.data.retain(|data| data.current_stage() == Stage::Open);
        if self.data.len() >= MAX_OPEN {
            for data in self.data.drain(..1) {
                data.stop();
            }
        }
        let (session, worker) = (self.session, &self.session.worker);
        let options = &self.rule.rule.ftp;
        let files = [worker.connection_file(), worker.connection_file()];
        let [Some(first), Some(second)] = files else {
            return Err(Problem::Exhausted(Shortage::Files));
        };
        let client = session.peer.0.ok_or(Problem::NoPort)?;
        let (ip, peer, mut target, source) = match opening.mode {
            Mode::Passive => (
                self.to_client,
                client.ip().to_canonical(),
                self.server,
                self.to_server,
            ),
            Mode::Active => {
                let own = self.to_server.ok_or(Problem::NoPort)?;
                let source = Some(self.to_client).filter(|ip| !ip.is_unspecified());
                let peer = self.server.ip().to_canonical();
                (own, peer, client, source)
            }
        };
        target.set_port(opening.port);
        let drawn = evenkeel_net::random_bytes().map(u32::from_ne_bytes);
        let leased = drawn.and_then(|drawn| ports::listen_in_range(ip, &options.ports.0, drawn));
        let listening = leased.and_then(|(lease, listener)| {
            let address = listener.local_addr()?;
            Ok((lease, TcpListener::from_std(listener)?, address))
        });
        let (lease, listener, mut address) =
            listening.map_err(|error| match Shortage::of_error(&error) {
                Some(shortage) if error.kind() != io::ErrorKind::AddrInUse => {
                    Problem::Exhausted(shortage)
                }
                _ => {
                    warn_throttled!(
                        rule = %session.service.name, ports = %options.ports, %ip, %error,
                        "FTP: no port is free for a data connection: extend `ports` of the rule's table `ftp`"
                    );
                    Problem::NoPort
                }
            })?;
        if ip.is_unspecified() {
            address.set_ip(session.local.address.ip().unwrap_or(ip));
        }
        let data = Data::new(opening.mode, &self.waker);
        let waiting = Waiting {
            data: Rc::clone(&data),
            rule: Rc::clone(self.rule),
            listener,
            lease,
            files: [first, second],
            peer,
            target,
            source,
            tls: self
                .tls
                .clone()
                .filter(|_| self.conversation.protects_data()),
        };
        tokio::task::spawn_local(data::serve_data(session.of_stream(), waiting));
        self.data.push(data);
        self.conversation
            .announce_listener(address, options.announce, &mut self.out);
        Ok(())
    }

    /// Waits for data connections that are open.
    pub(super) async fn drain_data(&mut self) {
        self.close_waiting();
        let watch = &self.session.watch;
        watch.disarm_deadline();
        let (waker, all) = (&self.waker, &self.data);
        // Only an order to stop ends it: each has a time limit of its own.
        let _ = watch
            .poll_until_stop(|cx| {
                waker.replace(Some(cx.waker().clone()));
                match all.iter().any(|data| data.current_stage() == Stage::Open) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
    }

    /// Ends the data connections with the session.
    pub(in crate::ftp) async fn close(&mut self) {
        for data in &self.data {
            data.finish_command(None, self.session);
            data.stop();
        }
        if let Some(data) = self.transfer.take() {
            data.finish_command(None, self.session);
        }
        let (waker, all) = (&self.waker, &self.data);
        std::future::poll_fn(|cx| {
            waker.replace(Some(cx.waker().clone()));
            match all.iter().all(|data| data.current_stage() == Stage::Done) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
