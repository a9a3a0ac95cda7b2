//! The responder is tried before it is let at packets: a query that no network has seen must
//! get a true answer. So what the programs find in this kernel is checked once as a whole.

use std::net::IpAddr;

use std::time::Duration;

use libbpf_rs::{Object, ProgramInput};

use super::options::Options;
use crate::bpf::{BpfError, failed_to, find_program_mut};
use crate::query::{Answer, Key, Query, WITH_PORTS};
use crate::record::Available;

const ETHERNET: usize = 14;
const XDP_TX: u32 = 3;

pub(super) fn run(object: &Object, options: &Options) -> Result<(), BpfError> {
    let (Some(key), Some(source), Some(host)) = (
        options.keys.first(),
        options.allow.first(),
        options.hosts.first(),
    ) else {
        return Ok(());
    };
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| BpfError::File(format!("the system gives no random numbers: {error}")))?;
    let query = Query {
        length: WITH_PORTS as u16,
        target: 0,
        first_cpu: 0,
        reader: u64::from_ne_bytes(random),
        number: 1,
        host: *host,
    };
    let (answer, _) = run_query(object, options.port, source.address(), &query, key)?;
    let answer = Answer::parse(&answer, key)
        .map_err(|_| BpfError::Lost("the responder gave a wrong answer to a trial query"))?;
    let base = &answer.record.base;
    let needed = Available::RUNNING.with_parts(Available::BUSY);
    let busiest = u64::from(base.cpus).saturating_mul(base.time_ns);
    if base.available.has_all(needed)
        && base.totals.busy_ns <= busiest
        && base.totals.running < 1 << 22
    {
        Ok(())
    } else {
        Err(BpfError::Lost(
            "the responder gave impossible values to a trial query",
        ))
    }
}

/// The answer to a query that no network has seen, and how long the program took.
pub(super) fn run_query(
    object: &Object,
    port: u16,
    source: IpAddr,
    query: &Query,
    key: &Key,
) -> Result<(Vec<u8>, Duration), BpfError> {
    let mut datagram = Vec::new();
    query.write(key, &mut datagram);
    let frame = frame(source, port, &datagram);
    let mut out = vec![0; frame.len()];
    let output = find_program_mut(object, "evk_xdp")?
        .test_run(ProgramInput {
            data_in: Some(&frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        })
        .map_err(failed_to("run a BPF program"))?;
    let (verdict, took) = (output.return_value, output.duration);
    if verdict != XDP_TX {
        return Err(BpfError::Lost("the responder did not answer a trial query"));
    }
    let answer = out.split_off(out.len().saturating_sub(datagram.len()));
    Ok((answer, took))
}

/// A packet from there.
fn frame(source: IpAddr, port: u16, datagram: &[u8]) -> Vec<u8> {
    let udp = (8 + datagram.len()) as u16;
    let mut out = vec![2; ETHERNET];
    match source {
        IpAddr::V4(source) => {
            out.truncate(ETHERNET - 2);
            out.extend([0x08, 0x00, 0x45, 0]);
            out.extend((20 + udp).to_be_bytes());
            out.extend([0, 0, 0, 0, 64, 17, 0, 0]);
            out.extend(source.octets());
            out.extend([127, 0, 0, 1]);
        }
        IpAddr::V6(source) => {
            out.truncate(ETHERNET - 2);
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(udp.to_be_bytes());
            out.extend([17, 64]);
            out.extend(source.octets());
            out.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        }
    }
    out.extend(port.to_be_bytes());
    out.extend(port.to_be_bytes());
    out.extend(udp.to_be_bytes());
    out.extend([0, 0]);
    out.extend(datagram);
    out
}
