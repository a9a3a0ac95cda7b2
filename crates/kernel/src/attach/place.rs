//! Place of the responder: an XDP program that a link holds, or a filter of traffic control.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::query::{LinkTypeInfo, ProgInfoIter};
use libbpf_rs::{Link, Object, TC_INGRESS, TcHook, TcHookBuilder, Xdp, XdpFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::config::{Config, write};
use super::options::{Mode, Options};
use super::pins::{LINK, remove};
use crate::bpf::{BpfError, create_clsact, failed_to, find_program, refuse_with};

/// Puts the program where it belongs, or in the place of the one that is there.
pub(super) fn put(
    object: &Object,
    options: &Options,
    folder: &Path,
    config: &mut Config,
    before: Option<&Config>,
) -> Result<(), BpfError> {
    if let Some(before) = before.filter(|before| is_there(before, folder)) {
        match options.mode {
            Some(mode) if mode as u32 != before.mode => take(before, folder)?,
            _ => return renew(object, config, folder),
        }
    }
    let modes = match options.mode {
        Some(mode) => vec![mode],
        // What a veth sends back itself is lost unless its other end, often the host of a
        // container, has an XDP program, too.
        None if driver(&options.interface) == "veth" => vec![Mode::Generic, Mode::Tc],
        None => vec![Mode::Native, Mode::Generic, Mode::Tc],
    };
    let mut refused = Vec::new();
    for mode in modes {
        config.mode = mode as u32;
        // It says what to do with checksums, so it is there first.
        write(object, config)?;
        let put = match mode {
            Mode::Native | Mode::Generic => put_xdp(object, mode, config.interface, folder),
            Mode::Tc => put_tc(object, config),
        };
        match put {
            Ok(()) => return write(object, config),
            Err(error @ BpfError::Rights(_)) => return Err(error),
            Err(error) => refused.push(format!("{}: {error}", mode.name())),
        }
    }
    Err(BpfError::Refused(
        "put the responder on the interface",
        refused.join("; "),
    ))
}

/// The name of an interface's driver; empty if it tells none.
fn driver(interface: &str) -> String {
    // struct ethtool_drvinfo: the command ETHTOOL_GDRVINFO, then the driver's name.
    let mut info = [0u8; 196];
    info[0] = 3;
    // SAFETY: all zero is a valid value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    let name = request.ifr_name.iter_mut().take(room);
    name.zip(interface.bytes())
        .for_each(|(to, from)| *to = from.cast_signed());
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let Ok(socket) = socket else {
        return String::new();
    };
    // SAFETY: it writes no more than a struct ethtool_drvinfo, which there is room for.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) } {
        0 => info[4..36]
            .iter()
            .take_while(|byte| **byte != 0)
            .map(|byte| char::from(*byte))
            .collect(),
        _ => String::new(),
    }
}

fn renew(object: &Object, config: &mut Config, folder: &Path) -> Result<(), BpfError> {
    if config.mode == Mode::Tc as u32 {
        let program = find_program(object, "evk_tc")?;
        let attached = hook(program.as_fd(), config).replace(true).attach();
        return attached
            .map(drop)
            .map_err(failed_to("change the tc filter"));
    }
    let mut link = Link::open(folder.join(LINK)).map_err(failed_to("open the pinned link"))?;
    let changed = link.update_prog(&find_program(object, "evk_xdp")?);
    // It is pinned: this lets go of nothing.
    link.disconnect();
    changed.map_err(failed_to("change the XDP program"))
}

fn put_xdp(object: &Object, mode: Mode, interface: u32, folder: &Path) -> Result<(), BpfError> {
    let program = find_program(object, "evk_xdp")?;
    let other = Xdp::new(program.as_fd())
        .query_id(interface.cast_signed(), XdpFlags::NONE)
        .unwrap_or(0);
    if other != 0 {
        return Err(BpfError::File(format!(
            "the XDP program {other} is on the interface; use --mode tc, which works beside another XDP program"
        )));
    }
    // SAFETY: all zero is a valid value of it.
    let mut how: libbpf_sys::bpf_link_create_opts = unsafe { mem::zeroed() };
    how.sz = size_of_val(&how) as _;
    how.flags = match mode {
        Mode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
        _ => libbpf_sys::XDP_FLAGS_SKB_MODE,
    };
    // SAFETY: `how` is there until it returns.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_fd().as_raw_fd(),
            interface.cast_signed(),
            libbpf_sys::BPF_XDP,
            &how,
        )
    };
    if link < 0 {
        return Err(refuse_with("attach XDP", link));
    }
    // SAFETY: it is new, and nobody else's.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let path = folder.join(LINK);
    remove(&path)?;
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| BpfError::File(format!("a path: {error}")))?;
    // SAFETY: the path ends with a zero.
    match unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) } {
        0 => Ok(()),
        error => Err(refuse_with("pin the link", error)),
    }
}

fn hook(program: BorrowedFd<'_>, config: &Config) -> TcHook {
    let mut hook = TcHookBuilder::new(program)
        .ifindex(config.interface.cast_signed())
        .handle(config.handle)
        .priority(config.priority)
        .hook(TC_INGRESS);
    hook.replace(false);
    hook
}

fn put_tc(object: &Object, config: &mut Config) -> Result<(), BpfError> {
    config.made_qdisc = create_clsact(config.interface)?;
    // The kernel chooses a priority before those that are there.
    (config.handle, config.priority) = (0, 0);
    let program = find_program(object, "evk_tc")?;
    let attached = hook(program.as_fd(), config).attach();
    let attached = attached.map_err(failed_to("attach the tc filter"))?;
    config.handle = attached.get_handle();
    config.priority = attached.get_priority();
    Ok(())
}

/// Nothing that is a file, for where one is not looked at.
fn no_program() -> Result<File, BpfError> {
    File::open("/dev/null").map_err(|error| BpfError::File(format!("/dev/null: {error}")))
}

/// The program on the interface, if it is still there.
pub(super) fn program_of(config: &Config, folder: &Path) -> Option<u32> {
    if config.mode == Mode::Tc as u32 {
        let there = hook(no_program().ok()?.as_fd(), config).query().ok()?;
        return is_ours(there).then_some(there);
    }
    let mut link = Link::open(folder.join(LINK)).ok()?;
    let info = link.info();
    link.disconnect();
    let info = info.ok()?;
    match info.info {
        // Its interface is gone otherwise.
        LinkTypeInfo::Xdp(xdp) if xdp.ifindex != 0 => Some(info.prog_id),
        _ => None,
    }
}

/// Returns true if a program is a filter of ours: another program may have got its place since, if
/// somebody has removed ours.
fn is_ours(id: u32) -> bool {
    ProgInfoIter::default().any(|info| info.id == id && info.name == "evk_tc")
}

pub(super) fn is_there(config: &Config, folder: &Path) -> bool {
    program_of(config, folder).is_some()
}

/// Takes it away.
pub(super) fn take(config: &Config, folder: &Path) -> Result<(), BpfError> {
    if config.mode != Mode::Tc as u32 {
        if let Ok(mut link) = Link::open(folder.join(LINK)) {
            let detached = link.detach();
            link.disconnect();
            detached.map_err(failed_to("detach XDP"))?;
        }
        return remove(&folder.join(LINK));
    }
    if !is_there(config, folder) {
        return Ok(());
    }
    let mut hook = hook(no_program()?.as_fd(), config);
    hook.detach().map_err(failed_to("detach the tc filter"))?;
    let still_used = || {
        filters(config.interface).map_err(|error| BpfError::File(format!("tc filters: {error}")))
    };
    if config.made_qdisc && !still_used()? {
        hook.attach_point(libbpf_rs::TC_INGRESS | libbpf_rs::TC_EGRESS);
        hook.destroy()
            .map_err(failed_to("remove the clsact qdisc"))?;
    }
    Ok(())
}

/// Returns true if there are filters at ingress or egress of an interface. libbpf can only ask for
/// filters that it knows, so this function asks the kernel itself, over rtnetlink.
fn filters(interface: u32) -> io::Result<bool> {
    const RTM_NEWTFILTER: u16 = 44;
    const RTM_GETTFILTER: u16 = 46;
    const DUMP: u16 = 0x301; // NLM_F_REQUEST | NLM_F_DUMP
    const INGRESS: u32 = 0xffff_fff2;
    const EGRESS: u32 = 0xffff_fff3;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE
    )?;
    for parent in [INGRESS, EGRESS] {
        // struct nlmsghdr, then struct tcmsg.
        let mut ask = Vec::new();
        ask.extend(36u32.to_ne_bytes());
        ask.extend(RTM_GETTFILTER.to_ne_bytes());
        ask.extend(DUMP.to_ne_bytes());
        ask.extend([0; 8 + 4]);
        ask.extend(interface.to_ne_bytes());
        ask.extend(0u32.to_ne_bytes());
        ask.extend(parent.to_ne_bytes());
        ask.extend(0u32.to_ne_bytes());
        rustix::net::send(&socket, &ask, SendFlags::empty())?;
        let mut done = false;
        while !done {
            let mut buffer = vec![0; 1 << 16];
            let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            let mut messages = buffer.get(..length).unwrap_or_default();
            while let Some((head, _)) = messages.split_first_chunk::<16>() {
                let long = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
                match u16::from_ne_bytes([head[4], head[5]]) {
                    RTM_NEWTFILTER => return Ok(true),
                    // The end, or an error: there is no such qdisc.
                    2 | 3 => done = true,
                    _ => {}
                }
                let next = long.next_multiple_of(4).max(16);
                messages = messages.get(next..).unwrap_or_default();
            }
            done |= length == 0;
        }
    }
    Ok(false)
}
