//! Connections that are cut while members change and the balancer is reloaded, killed and upgraded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_bench::epoll::{Epoll, READ};
use evenkeel_bench::server::Server;

use crate::ground::{Arm, Balancer, Ground, PORT, member_addresses};
use crate::results::{CHANGES, CUT, CUTS, KILL, OPENED, REFUSED, RELOADS, Results, UPGRADE};
use crate::traffic::widen_backlog;
use crate::{Result, Run};

/// Time for which each change is in effect: the control loop writes the program's tables 20 times a second.
const CHANGE: Duration = Duration::from_millis(100);
/// Time in which all open connections answer, unless they are cut.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Number of reloads of an unchanged configuration.
const RELOAD_COUNT: usize = 10;
/// Token of the listener's events; a connection's token is its place in the list, plus one.
const LISTENER: u64 = 0;

/// Measures how many open connections do not answer after changes of members, reloads, a kill and an upgrade, and
/// how many connections cannot be opened meanwhile.
///
/// # Errors
///
/// Returns an error if there are no namespaces, or the balancer does not serve.
pub(crate) fn measure(run: &Run, results: &mut Results) -> Result<()> {
    let (count, changes) = run.scale((10_000, 1000), (2000, 100));
    let ground = Arc::new(Ground::new()?);
    let mut members = ground.pair.back.command(std::env::current_exe()?);
    members.arg("--answer").arg(PORT.to_string());
    let _members = Server::start(members, run.cpu, libc::SIGKILL)?;
    let balancer = start_balancer(run, &ground)?;
    let open = open_connections(&balancer, count)?;
    let opening = Opening::default();
    let target = balancer.arm.targets()[0];
    let _successor = thread::scope(|scope| {
        scope.spawn(|| ground.clients.run_inside(|| opening.open_until_end(target)));
        let successor = cut_connections(balancer, run, changes, open, results);
        opening.ends.store(true, Ordering::Relaxed);
        successor
    })?;
    let [opened, failed] =
        [&opening.opened, &opening.failed].map(|one| one.load(Ordering::Relaxed));
    results.add_metric(CUTS, OPENED, Arm::Kernel.name(), 0, opened as f64);
    results.add_metric(CUTS, REFUSED, Arm::Kernel.name(), 0, failed as f64);
    Ok(())
}

fn start_balancer(run: &Run, ground: &Arc<Ground>) -> Result<Balancer> {
    let ground = Arc::clone(ground);
    let balancer = Balancer::start(run, Arm::Kernel, ground, run.cpu, &member_addresses(), "")?;
    balancer.wait_until_ready()?;
    Ok(balancer)
}

/// Opens connections that answer.
fn open_connections(balancer: &Balancer, count: usize) -> Result<Vec<TcpStream>> {
    let target = balancer.arm.targets()[0];
    let connect = |_| TcpStream::connect(target);
    let open: io::Result<Vec<TcpStream>> = balancer
        .ground
        .clients
        .run_inside(|| (0..count).map(connect).collect());
    let mut open = open?;
    match remove_cut(&mut open) {
        0 => Ok(open),
        silent => Err(format!("{silent} of {count} connections do not answer").into()),
    }
}

/// Process that has taken over; dropping it ends the process.
struct Successor(i32);

impl Drop for Successor {
    fn drop(&mut self) {
        // SAFETY: plain system call; nothing else ends this process.
        unsafe { libc::kill(self.0, libc::SIGTERM) };
    }
}

/// Does to the balancer what must not cut connections, adds the number of connections that each event has cut, and
/// returns the process that serves then.
fn cut_connections(
    balancer: Balancer,
    run: &Run,
    changes: usize,
    mut open: Vec<TcpStream>,
    results: &mut Results,
) -> Result<Successor> {
    let all = member_addresses();
    let mut add = |event, open: &mut Vec<TcpStream>| {
        let cut = remove_cut(open);
        println!("After {event} {cut} connections were cut.");
        results.add_metric(CUTS, CUT, event, 0, cut as f64);
    };
    for change in 0..changes {
        // Each member goes, and comes back with the next change.
        let mut members = all.clone();
        members.remove(change % all.len());
        balancer.write_config(&members, "")?;
        balancer.post_admin("/v1/reload")?;
        thread::sleep(CHANGE);
    }
    add(CHANGES, &mut open);

    balancer.write_config(&all, "")?;
    for _ in 0..RELOAD_COUNT {
        balancer.post_admin("/v1/reload")?;
        thread::sleep(CHANGE);
    }
    add(RELOADS, &mut open);

    let server = balancer.server.as_ref().ok_or("no process")?;
    // SAFETY: plain system call; the process has not been waited for, so its id is its own.
    unsafe { libc::kill(server.id() as i32, libc::SIGKILL) };
    let ground = Arc::clone(&balancer.ground);
    drop(balancer);
    let balancer = start_balancer(run, &ground)?;
    add(KILL, &mut open);

    let answer = balancer.post_admin("/v1/upgrade")?;
    let process = answer.split("\"pid\":").nth(1).unwrap_or_default();
    let digits = process
        .split(|letter: char| !letter.is_ascii_digit())
        .next();
    let process = digits.unwrap_or_default().parse();
    let successor = Successor(process.map_err(|_| format!("the upgrade failed: {answer}"))?);
    balancer.wait_until_ready()?;
    // The old process ends, and the new one forwards alone.
    drop(balancer);
    add(UPGRADE, &mut open);
    Ok(successor)
}

/// Removes the connections that do not answer, and returns their number.
fn remove_cut(open: &mut Vec<TcpStream>) -> usize {
    let before = open.len();
    open.retain_mut(|stream| stream.write_all(&[1]).is_ok());
    let deadline = Instant::now() + ANSWER_LIMIT;
    open.retain_mut(|stream| {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = left.max(Duration::from_millis(1));
        stream.set_read_timeout(Some(limit)).is_ok() && stream.read_exact(&mut [0]).is_ok()
    });
    before - open.len()
}

/// Connections that are opened, used once and closed, one after the other.
#[derive(Default)]
struct Opening {
    ends: AtomicBool,
    opened: AtomicUsize,
    failed: AtomicUsize,
}

impl Opening {
    fn open_until_end(&self, target: SocketAddr) {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&target, ANSWER_LIMIT)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])
        };
        while !self.ends.load(Ordering::Relaxed) {
            let count = match ask() {
                Ok(()) => &self.opened,
                Err(error) => {
                    println!("A connection failed: {error}.");
                    &self.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Answers all connections at a port with what they send, until this process is ended: connections of members have a
/// process of their own, since the limit on open files counts for each process.
///
/// # Errors
///
/// Returns an error if the port cannot be had, or the system refuses a call.
pub(crate) fn answer_connections(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    widen_backlog(&listener);
    listener.set_nonblocking(true)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, READ, LISTENER)?;
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    loop {
        for event in 0..epoll.wait_for_events(None)? {
            let (token, _) = epoll.event(event);
            if token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    let place = free.pop().unwrap_or(streams.len());
                    epoll.add(&stream, READ, place as u64 + 1)?;
                    match streams.get_mut(place) {
                        Some(slot) => *slot = Some(stream),
                        None => streams.push(Some(stream)),
                    }
                }
                continue;
            }
            let place = token as usize - 1;
            let Some(Some(stream)) = streams.get_mut(place) else {
                continue;
            };
            if !answer(stream) {
                streams[place] = None;
                free.push(place);
            }
        }
    }
}

/// Answers what is there to read. Returns false if the connection is over.
fn answer(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 64];
    match stream.read(&mut bytes) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&bytes[..length]).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
