//! Cost of sending a datagram to each of 10,000 hosts, by the way of sending: the floor under the kernel load monitor,
//! whose own figures are those of `monitor`.
//!
//! A veth pair joins two network namespaces of this program's own. Datagrams that arrive are handled by a thread of the
//! kernel on another CPU (threaded NAPI), so the CPU time of the sending thread is the cost of sending alone; on
//! loopback it would include delivering. All ways send the same bytes at the same pace, in turns. A datagram that a
//! full queue at the other end drops counts as sent: the program prints how many arrived, so choose a time when the
//! other CPU is free.
//!
//! A packet socket sends whole Ethernet frames. A program that uses one has to find out the way to each host and its
//! neighbour's address, which is not counted here, and passes the firewall by.
//!
//! `datagrams [--rounds N]`, as root, with `--release`

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::zeroed;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_bench::report::median;
use evenkeel_bench::server::{pin_to, processors, raise_file_limit};
use evenkeel_kernel::query::{DEFAULT_PORT, SHORT};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// To how many.
const HOSTS: u32 = 10_000;

/// Datagrams of one call, as the monitor has them.
const BATCH: usize = 64;

/// Bytes before the datagram: Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

const FRAME: usize = HEADERS + SHORT;

/// Interval of batches: the pace is half of the monitor's, which sends to as many hosts every 50 ms.
const PACE: Duration = Duration::from_micros(640);

#[derive(Parser)]
struct Options {
    /// Number of measurements of each way.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Batches of each measurement.
    #[arg(long, default_value_t = 500)]
    batches: u32,
    /// Be the other end, on loopback or at the end of the pair.
    #[arg(long, hide = true)]
    sink: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.sink.as_deref() {
        Some(link) => sink(link == "veth"),
        None => measure(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("datagrams: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    // The system has children of this thread in its namespaces; nothing is left of them in the end.
    unshare()?;
    pin_to(*processors()?.first().ok_or("no processor")?)?;
    raise_file_limit()?;
    let (mut other, mut said) = Sink::start("veth")?;
    run("ip link add name front type veth peer name back")?;
    run(&format!("ip link set back netns {}", other.0.id()))?;
    run("ip addr add 10.76.0.1/24 dev front")?;
    // Else packets of our own do not go by the thread.
    run("ethtool -K front gro on tso off")?;
    run("ip link set front up")?;
    run("ip route add 10.77.0.0/16 via 10.76.0.2")?;
    let mut go = other.0.stdin.take().ok_or("no input")?;
    go.write_all(b"go\n")?;
    ready(&mut said)?;
    let (_loopback, _said) = Sink::start("lo")?;

    let packet = Packet::new()?;
    let arm = |name, way| Arm {
        name,
        way,
        figures: Vec::new(),
        went: 0,
    };
    let mut arms = [
        arm("nothing, the pace alone", Box::new(Nothing)),
        arm("UDP, one socket, loopback", Box::new(Udp::new([127, 1])?)),
        arm("UDP, one socket, veth", Box::new(Udp::new([10, 77])?)),
        arm("UDP, a socket for each, veth", Box::new(Connected::new()?)),
        arm("packet socket, veth", Box::new(packet)),
    ];
    for _ in 0..options.rounds {
        arms.iter_mut()
            .try_for_each(|arm| arm.take_turn(options.batches))?;
    }
    let all = u64::from(options.rounds) * u64::from(options.batches) * BATCH as u64;
    println!("microseconds of CPU time for a datagram of {SHORT} bytes, median (least to most):");
    for Arm {
        name,
        mut figures,
        went,
        ..
    } in arms
    {
        figures.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
            continue;
        };
        let spread = format!("({least:.2} to {most:.2})");
        let went = match name.ends_with("veth") {
            true => format!(", {:.0} % went", went as f64 / all as f64 * 100.0),
            false => String::new(),
        };
        let middle = median(figures).unwrap_or(f64::NAN);
        println!("{name:>28}: {middle:.2} {spread}{went}");
    }
    Ok(())
}

/// A way to send, with what was measured of it.
struct Arm {
    name: &'static str,
    way: Box<dyn Way>,
    /// Microseconds for a datagram, by round.
    figures: Vec<f64>,
    /// Number of datagrams that went over the pair.
    went: u64,
}

impl Arm {
    fn take_turn(&mut self, batches: u32) -> Result<()> {
        let before = sent()?;
        let (began, mut due) = (cpu_time(), Instant::now());
        for batch in 0..batches {
            let first = batch.wrapping_mul(BATCH as u32) % HOSTS;
            let done = self.way.send(first);
            done.map_err(|error| format!("{}: {error}", self.name))?;
            due += PACE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let count = f64::from(batches) * BATCH as f64;
        self.figures
            .push((cpu_time() - began).as_secs_f64() * 1e6 / count);
        self.went += sent()? - before;
        Ok(())
    }
}

/// Gives this process its own network namespace and its own `/sys`.
fn unshare() -> Result<()> {
    // SAFETY: plain system call.
    if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } < 0 {
        let error = io::Error::last_os_error();
        return Err(format!("no network namespace (root is needed): {error}").into());
    }
    run("mount --make-rprivate /")?;
    run("mount -t sysfs none /sys")?;
    run("ip link set lo up")
}

fn run(words: &str) -> Result<()> {
    let mut all = words.split(' ');
    let mut command = Command::new(all.next().unwrap_or_default());
    let output = command.args(all).output();
    let output = output.map_err(|error| format!("{words}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{words}: {}", said.trim()).into());
    }
    Ok(())
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    // SAFETY: plain data of C, for which all zeros are valid.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: the time is ours; this clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Packets that have gone over the pair.
fn sent() -> Result<u64> {
    let text = fs::read_to_string("/sys/class/net/front/statistics/tx_packets")?;
    Ok(text.trim().parse()?)
}

/// The process at the other end; it goes with the measurement.
struct Sink(Child);

impl Sink {
    fn start(link: &str) -> Result<(Self, BufReader<ChildStdout>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--sink", link]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take();
        let sink = Sink(child);
        let mut said = BufReader::new(said.ok_or("no output")?);
        ready(&mut said)?;
        Ok((sink, said))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the other end has done the next thing.
fn ready(said: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    match said.read_line(&mut line)? {
        0 => Err("the other end has ended".into()),
        _ => Ok(()),
    }
}

/// Receives, on another CPU, for ever.
fn sink(is_veth: bool) -> Result<()> {
    let cpu = *processors()?.last().ok_or("no processor")?;
    pin_to(cpu)?;
    let say = || -> Result<()> {
        println!("ready");
        Ok(io::stdout().flush()?)
    };
    if is_veth {
        unshare()?;
        say()?;
        // The other end of the pair comes here meanwhile.
        ready(&mut io::stdin().lock())?;
        run("ip addr add 10.76.0.2/24 dev back")?;
        run("ethtool -K back gro on tso off")?;
        run("ip link set back up")?;
        run("ip route add local 10.77.0.0/16 dev lo")?;
        fs::write("/sys/class/net/back/threaded", "1")?;
        for process in fs::read_dir("/proc")?.flatten() {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if name.starts_with("napi/back-") {
                let id = process.file_name();
                run(&format!("taskset -pc {cpu} {}", id.to_string_lossy()))?;
            }
        }
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT))?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20)?;
    say()?;
    let mut bytes = [0; SHORT];
    loop {
        socket.recv(&mut bytes)?;
    }
}

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the option takes an int, whose address and size these are.
    match unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A way to send.
trait Way {
    /// Sends to a batch of hosts from this one on.
    fn send(&mut self, first: u32) -> io::Result<()>;
}

struct Nothing;

impl Way for Nothing {
    fn send(&mut self, _first: u32) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a batch of buffers, to an address each or to where they say themselves.
fn send_all<const N: usize>(
    socket: &impl AsRawFd,
    buffers: &mut [[u8; N]],
    names: &mut [libc::sockaddr_in],
) -> io::Result<()> {
    // SAFETY: plain data of C, for which all zeros are valid.
    let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { zeroed() };
    let mut names = names.iter_mut();
    let places = vectors.iter_mut().zip(&mut messages);
    for (bytes, (vector, message)) in buffers.iter_mut().zip(places) {
        vector.iov_base = bytes.as_mut_ptr().cast();
        vector.iov_len = N;
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
        if let Some(name) = names.next() {
            message.msg_hdr.msg_name = (&raw mut *name).cast();
            message.msg_hdr.msg_namelen = size_of_val(name) as libc::socklen_t;
        }
    }
    let mut done = 0;
    while let Some(rest) = messages.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let (fd, count) = (socket.as_raw_fd(), rest.len() as libc::c_uint);
        // SAFETY: the messages point to buffers and names that live in this call, and are only read.
        let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), count, 0) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent.max(1),
            // A packet socket is told that the other end's queue is full.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) => done += 1,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

fn host(net: [u8; 2], index: u32) -> Ipv4Addr {
    let [_, _, high, low] = (index % HOSTS).to_be_bytes();
    Ipv4Addr::new(net[0], net[1], high, low)
}

/// Sends UDP datagrams as the monitor does.
struct Udp {
    socket: UdpSocket,
    net: [u8; 2],
    buffers: Vec<[u8; SHORT]>,
}

impl Udp {
    fn new(net: [u8; 2]) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 32 << 20)?;
        let probe = libc::IP_PMTUDISC_PROBE;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
        Ok(Udp {
            socket,
            net,
            buffers: vec![[0; SHORT]; BATCH],
        })
    }
}

impl Way for Udp {
    fn send(&mut self, first: u32) -> io::Result<()> {
        // SAFETY: plain data of C, for which all zeros are valid.
        let mut names: [libc::sockaddr_in; BATCH] = unsafe { zeroed() };
        for (name, index) in names.iter_mut().zip(first..) {
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = DEFAULT_PORT.to_be();
            name.sin_addr.s_addr = u32::from(host(self.net, index)).to_be();
        }
        send_all(&self.socket, &mut self.buffers, &mut names)
    }
}

/// A connected socket for each host.
struct Connected(Vec<UdpSocket>);

impl Connected {
    fn new() -> io::Result<Self> {
        let open = |index| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((host([10, 77], index), DEFAULT_PORT))?;
            Ok(socket)
        };
        Ok(Connected((0..HOSTS).map(open).collect::<io::Result<_>>()?))
    }
}

impl Way for Connected {
    fn send(&mut self, first: u32) -> io::Result<()> {
        let mut sockets = self.0.iter().cycle().skip(first as usize).take(BATCH);
        sockets.try_for_each(|socket| socket.send(&[0; SHORT]).map(drop))
    }
}

/// The link-layer address of the other end, which the system knows when it has sent something there.
fn neighbour() -> Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.send_to(&[0], (Ipv4Addr::new(10, 76, 0, 2), DEFAULT_PORT))?;
    for _ in 0..500 {
        let show = ["neigh", "show", "10.76.0.2"];
        let shown = Command::new("ip").args(show).output()?.stdout;
        let shown = String::from_utf8(shown)?;
        let mut words = shown.split_whitespace();
        if words.any(|word| word == "lladdr")
            && let Some(address) = words.next()
        {
            return Ok(address.to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("the other end does not answer".into())
}

/// Whole frames, past the system's IP.
struct Packet {
    socket: OwnedFd,
    frames: Vec<[u8; FRAME]>,
}

impl Packet {
    fn new() -> Result<Self> {
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: it has just been opened, and is nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        let name = CString::new("front")?;
        // SAFETY: plain data of C, for which all zeros are valid.
        let mut at: libc::sockaddr_ll = unsafe { zeroed() };
        at.sll_family = libc::AF_PACKET as libc::sa_family_t;
        // SAFETY: `name` is a string that ends with 0.
        at.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
        let size = size_of_val(&at) as libc::socklen_t;
        // SAFETY: the address and its size are those of a link-layer address.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let own = fs::read_to_string("/sys/class/net/front/address")?;
        let neighbour = neighbour()?;
        let digits = neighbour.split(':').chain(own.trim().split(':'));
        let macs: std::result::Result<Vec<u8>, _> =
            digits.map(|byte| u8::from_str_radix(byte, 16)).collect();
        let mut frame = [0; FRAME];
        frame[..12].copy_from_slice(&macs?);
        frame[12..34].copy_from_slice(&[
            8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 76, 0, 1, 0, 0, 0, 0,
        ]);
        frame[16..18].copy_from_slice(&((FRAME - 14) as u16).to_be_bytes());
        frame[34..36].copy_from_slice(&40_000u16.to_be_bytes());
        frame[36..38].copy_from_slice(&DEFAULT_PORT.to_be_bytes());
        frame[38..40].copy_from_slice(&((SHORT + 8) as u16).to_be_bytes());
        Ok(Packet {
            socket,
            frames: vec![frame; BATCH],
        })
    }
}

impl Way for Packet {
    fn send(&mut self, first: u32) -> io::Result<()> {
        for (frame, index) in self.frames.iter_mut().zip(first..) {
            frame[30..34].copy_from_slice(&host([10, 77], index).octets());
            frame[24..26].fill(0);
            let words = frame[14..34].chunks_exact(2);
            let sum: u32 = words
                .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            // The checksum of the data is left out, as is allowed over IPv4.
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        send_all(&self.socket, &mut self.frames, &mut [])
    }
}
