//! Any bytes from both sides of an FTP control connection: no panic, what is held stays short, the
//! same lines however they come, and no address of a client's command reaches the server.
#![no_main]

use evenkeel_wire::ftp::{Auth, Conversation, Lines, MAX_LINE, Output, Settings, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8], &[u8])| {
    let (kind, size, client, server) = input;
    let size = usize::from(size) + 1;
    for (whole, pieces) in [
        (Lines::of_client(), Lines::of_client()),
        (Lines::of_server(), Lines::of_server()),
    ] {
        assert_eq!(
            lines(whole, client, client.len() + 1),
            lines(pieces, client, size)
        );
    }
    let auth = [Auth::Refuse, Auth::Pass, Auth::End][usize::from(kind % 3)];
    let mut conversation = Conversation::new(Settings {
        client: "192.0.2.7".parse().unwrap(),
        server_is_v6: kind & 4 != 0,
        auth,
        require_tls: kind & 8 != 0,
    });
    let mut out = Output::default();
    let (mut commands, mut replies) = (Lines::of_client(), Lines::of_server());
    let (mut client, mut server) = (client, server);
    let mut waiting = false;
    loop {
        let mut step = Step::Nothing;
        if !waiting && !client.is_empty() {
            let Ok(taken) = commands.take(&client[..client.len().min(size)]) else {
                break;
            };
            client = &client[taken.used..];
            waiting = taken.line_ended;
            assert!(commands.current_line().len() <= MAX_LINE);
        }
        if waiting && conversation.may_take(commands.current_line()) {
            waiting = false;
            let interrupted = commands.is_interrupted();
            match conversation.take_command(commands.current_line(), interrupted, &mut out) {
                Ok(next) => step = next,
                Err(_) => break,
            }
        } else if !server.is_empty() {
            let Ok(taken) = replies.take(&server[..server.len().min(size)]) else {
                break;
            };
            server = &server[taken.used..];
            if taken.line_ended {
                match conversation.take_reply(replies.current_line(), &mut out) {
                    Ok(next) => step = next,
                    Err(_) => break,
                }
            }
        } else if conversation.has_loose_end() {
            match conversation.end_loosely(&mut out) {
                Ok(next) => step = next,
                Err(_) => break,
            }
        } else if waiting || client.is_empty() {
            break;
        }
        match step {
            Step::Open(_) => {
                conversation.announce_listener(
                    "198.51.100.1:30000".parse().unwrap(),
                    None,
                    &mut out,
                );
            }
            Step::Secure => conversation.mark_secured(),
            Step::Tunnel => break,
            Step::Nothing | Step::Close | Step::Transfer(_) | Step::Refused(_) => {}
        }
        let place = out.urgent.take();
        assert!(place.is_none_or(|place| out.server.get(place) == Some(&242)));
        for line in out.server.split(|byte| *byte == b'\n') {
            let is_port = line.starts_with(b"PORT ") || line.starts_with(b"EPRT ");
            assert!(
                !is_port
                    || line
                        .windows(6)
                        .any(|part| part == b"198,51" || part == b"198.51")
            );
        }
        out = Output::default();
    }
});

/// The lines, and whether something ended them.
fn lines(mut lines: Lines, mut bytes: &[u8], size: usize) -> (Vec<Vec<u8>>, bool) {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let Ok(taken) = lines.take(&bytes[..bytes.len().min(size)]) else {
            return (all, true);
        };
        bytes = &bytes[taken.used..];
        if taken.line_ended {
            all.push(lines.current_line().to_vec());
        }
    }
    (all, false)
}
