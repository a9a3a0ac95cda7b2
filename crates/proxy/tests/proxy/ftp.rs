//! FTP rules, with members that behave and members that do not.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::*;
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::member::Reason;
use evenkeel_manager::config::PortRange;
use evenkeel_manager::config::Protocol::Ftp;
use evenkeel_proxy::access::{End, Record};

/// A line of a control connection.
fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// The address in an answer to PASV, or in PORT.
fn address(text: &str) -> SocketAddr {
    let numbers: Vec<u8> = text
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    let [a, b, c, d, high, low] = numbers[..] else {
        panic!("no address: {text}");
    };
    let port = u16::from_be_bytes([high, low]);
    (Ipv4Addr::new(a, b, c, d), port).into()
}

fn numbers(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{},{high},{low}", address.ip()).replace('.', ",")
}

/// A server: `RETR n` sends n bytes, `RETR slowly` one byte after the other for longer than any time
/// limit of a test, `STOR` says how much came.
fn serve(stream: TcpStream) {
    let mut commands = BufReader::new(stream.try_clone().unwrap());
    let mut control = stream;
    let mut say = |text: &str| control.write_all(format!("{text}\r\n").as_bytes()).is_ok();
    say("220-Welcome\r\n220 Ready");
    let (mut passive, mut active) = (None, None);
    loop {
        let command = line(&mut commands);
        let (name, argument) = command.split_once(' ').unwrap_or((&command, ""));
        let goes_on = match name {
            "" => return,
            "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let numbers = numbers(listener.local_addr().unwrap());
                passive = Some(listener);
                // The address is a lie, which nobody believes.
                let numbers = numbers.replace("127,0,0,1", "192,0,2,1");
                say(&format!("227 Entering Passive Mode ({numbers})"))
            }
            "PORT" => {
                active = Some(address(argument));
                say("200 Ok")
            }
            "RETR" | "STOR" => {
                let mut data = match (passive.take(), active.take()) {
                    (Some(listener), _) => listener.accept().unwrap().0,
                    (None, Some(address)) => TcpStream::connect(address).unwrap(),
                    _ => {
                        say("425 Where?");
                        continue;
                    }
                };
                set_timeouts(&data);
                say("150 Go");
                let end = match (name, argument) {
                    ("STOR", _) => {
                        let mut all = Vec::new();
                        match data.read_to_end(&mut all) {
                            Ok(_) => format!("226 {}", all.len()),
                            Err(_) => "426 Cut".to_owned(),
                        }
                    }
                    (_, "slowly") => {
                        for _ in 0..20 {
                            std::thread::sleep(Duration::from_millis(100));
                            if data.write_all(b"x").is_err() {
                                return;
                            }
                        }
                        "226 Done".to_owned()
                    }
                    (_, count) => {
                        let _ = data.write_all(&byte_pattern(count.parse().unwrap()));
                        "226 Done".to_owned()
                    }
                };
                drop(data);
                say(&end)
            }
            "QUIT" => {
                say("221 Bye");
                return;
            }
            _ => say("200 Ok"),
        };
        if !goes_on {
            return;
        }
    }
}

/// A client's control connection.
struct Client {
    control: BufReader<TcpStream>,
}

impl Client {
    /// Connects a client that is greeted.
    fn new(bed: &Bed) -> Self {
        let mut client = Client {
            control: BufReader::new(bed.connect_client()),
        };
        assert_eq!(client.line(), "220-Welcome");
        assert_eq!(client.line(), "220 Ready");
        client
    }

    fn line(&mut self) -> String {
        line(&mut self.control)
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.control.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n"));
        self.line()
    }

    /// Asks for passive mode. Returns the address for data.
    fn passive(&mut self) -> SocketAddr {
        let answer = self.ask("PASV");
        assert!(answer.starts_with("227 "), "{answer}");
        address(&answer[4..])
    }

    fn connect(&mut self) -> TcpStream {
        let data = TcpStream::connect(self.passive()).unwrap();
        set_timeouts(&data);
        data
    }

    /// Asserts that the client is told so, and that its connection has ended.
    #[track_caller]
    fn is_refused(&mut self, text: &str) {
        let said = self.line();
        assert!(said.starts_with("421 ") && said.contains(text), "{said}");
        assert_eq!(self.line(), "", "the session has ended");
    }
}

fn bed() -> Bed {
    Bed::new(Ftp, &[member(|_, stream| serve(stream))], |_| {})
}

#[test]
fn files_pass_in_both_modes_and_directions() {
    let bed = bed();
    let mut client = Client::new(&bed);
    let mut data = client.connect();
    // Its own address, not the server's.
    assert!(data.peer_addr().unwrap().ip().is_loopback());
    assert_eq!(client.ask("RETR 3000000"), "150 Go");
    assert_eq!(
        bed.in_flight(),
        1,
        "a session is one connection to the strategy"
    );
    assert!(read_all(&mut data) == byte_pattern(3_000_000));
    drop(data);
    assert_eq!(client.line(), "226 Done");
    let transfer = bed.next_record();
    let (command, argument) = transfer.request.unwrap();
    assert_eq!((&*command, &*argument), ("RETR", "3000000"));
    assert_eq!((transfer.status, transfer.end), (Some(226), End::Complete));
    assert_eq!(transfer.bytes_sent, 3_000_000);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = numbers(listener.local_addr().unwrap());
    assert_eq!(client.ask(&format!("PORT {own}")), "200 Ok");
    client.send("STOR x\r\n");
    let mut data = listener.accept().unwrap().0;
    assert_eq!(client.line(), "150 Go");
    data.write_all(&byte_pattern(1_000_000)).unwrap();
    drop(data);
    assert_eq!(client.line(), "226 1000000");
    assert_eq!(bed.next_record().bytes_received, 1_000_000);
    assert_eq!(client.ask("QUIT"), "221 Bye");
    assert_eq!(client.line(), "");
    let session = bed.next_record();
    assert_eq!((session.end, session.request), (End::Complete, None));
    let totals = bed.rule_totals();
    assert_eq!((totals.ftp_passive_out, totals.ftp_active_in), (1, 1));
    assert_eq!(
        (totals.ftp_data_bytes_out, totals.ftp_data_bytes_in),
        (3_000_000, 1_000_000)
    );
    assert_eq!(totals.ftp_control_bytes_in, session.bytes_received);
    assert_eq!(totals.connections, 1);
    bed.wait_until_idle();
}

#[test]
fn several_commands_at_once_are_answered_in_order() {
    let bed = bed();
    let mut client = Client::new(&bed);
    client.send("NOOP\r\nEPSV ALL\r\nNOOP\nSYST\r\nPASV\r\nQUIT\r\nNOOP\r\n");
    let answers: Vec<_> = (0..6).map(|_| client.line()).collect();
    let codes: Vec<_> = answers.iter().map(|answer| &answer[..3]).collect();
    assert_eq!(codes, ["200", "200", "200", "200", "501", "221"]);
    assert_eq!(client.line(), "");
}

#[test]
fn fronts_d3_a_bounce_is_refused_and_many_end_the_session() {
    let bed = bed();
    let mut client = Client::new(&bed);
    let bounces = [
        "PORT 192,0,2,1,9,9",
        "PORT 127,0,0,1,0,22",
        "EPRT |2|::1|9999|",
    ];
    for bounce in bounces {
        let answer = client.ask(bounce);
        assert!(answer.starts_with("504 "), "{bounce}: {answer}");
        assert_eq!(client.ask("NOOP"), "200 Ok");
    }
    // It goes on passively.
    let mut data = client.connect();
    assert_eq!(client.ask("RETR 9"), "150 Go");
    assert_eq!(read_all(&mut data), byte_pattern(9));
    drop(data);
    assert_eq!(client.line(), "226 Done");
    assert_eq!(bed.next_record().end, End::Complete);
    assert_eq!(bed.rule_totals().ftp_bounce, 3);
    for bounce in bounces.iter().cycle().take(5) {
        assert!(client.ask(bounce).starts_with("504 "));
    }
    client.send(format!("{}\r\n", bounces[0]));
    client.is_refused("your own address");
    assert_eq!(bed.next_record().end, End::Client);
    assert_eq!(bed.rule_totals().ftp_bounce, 9);
}

/// Members as they are in use: lines that belong to no reply, replies of several lines to
/// everything, and such as end with another code.
#[test]
fn fronts_d2_d4_odd_replies_pass_as_clients_put_up_with_them() {
    let odd = member(|_, stream| {
        let mut commands = BufReader::new(stream.try_clone().unwrap());
        let mut control = stream;
        let mut say = |text: &str| control.write_all(text.as_bytes()).unwrap();
        say("\r\nWelcome\r\n220 Ready\r\n\r\n");
        let mut listener = None;
        loop {
            match &*line(&mut commands) {
                "" => return,
                "PASV" => {
                    let passive = TcpListener::bind("127.0.0.1:0").unwrap();
                    let numbers = numbers(passive.local_addr().unwrap()).replace(',', ", ");
                    listener = Some(passive);
                    say(&format!("227-Mode 1\r\n227 Entering it ({numbers})\r\n"));
                }
                "RETR 9" => {
                    let mut data = listener.take().unwrap().accept().unwrap().0;
                    say("Opening\r\n150\tGo\r\n");
                    data.write_all(&byte_pattern(9)).unwrap();
                    drop(data);
                    say("226Done\r\n");
                }
                "CWD x" => say("250-note\r\n200 ok\r\n"),
                _ => say("200 Fine\r\n"),
            }
        }
    });
    let bed = Bed::new(Ftp, &[odd], |_| {});
    let mut client = Client {
        control: BufReader::new(bed.connect_client()),
    };
    assert_eq!(client.line(), "220 Ready");
    let mut data = client.connect();
    assert_eq!(client.ask("RETR 9"), "150\tGo");
    assert_eq!(read_all(&mut data), byte_pattern(9));
    assert_eq!(client.line(), "226Done");
    // The next command waits until nothing more has come.
    client.send("CWD x\r\nNOOP\r\nCWD x\r\n");
    for expected in ["250-note", "200 ok", "200 Fine", "250-note", "200 ok"] {
        assert_eq!(client.line(), expected);
    }
    assert_eq!(client.ask("NOOP"), "200 Fine");
    assert_eq!(bed.rule_totals().ftp_member_reply, 0);
}

#[test]
fn strangers_get_no_data_and_keep_nobody_from_theirs() {
    let bed = bed();
    let mut client = Client::new(&bed);
    let address = client.passive();
    let stranger =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    stranger
        .bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())
        .unwrap();
    stranger.connect(&address.into()).unwrap();
    let mut stranger: TcpStream = stranger.into();
    set_timeouts(&stranger);
    let reset = stranger.read(&mut [0]).unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    let mut data = TcpStream::connect(address).unwrap();
    set_timeouts(&data);
    assert_eq!(client.ask("RETR 9"), "150 Go");
    assert_eq!(read_all(&mut data), byte_pattern(9));
    assert_eq!(client.line(), "226 Done");
    assert_eq!(bed.rule_totals().ftp_foreign, 1);
}

#[test]
fn without_a_free_port_the_session_ends() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let bed = Bed::new(Ftp, &[member(|_, stream| serve(stream))], |rule| {
        rule.ftp.ports = PortRange(port..=port);
    });
    let mut client = Client::new(&bed);
    client.send("PASV\r\n");
    client.is_refused("No port is free");
    assert_eq!(bed.next_record().end, End::Refused);
    assert_eq!(bed.rule_totals().ftp_no_port, 1);
    drop(taken);
    let mut client = Client::new(&bed);
    assert_eq!(client.passive().port(), port);
}

#[test]
fn lines_without_end_and_what_is_no_command_end_the_session() {
    let bed = bed();
    let mut client = Client::new(&bed);
    client.send(vec![b'a'; 100_000]);
    client.is_refused("too long");
    let mut client = Client::new(&bed);
    client.send("NOOP\rPORT 127,0,0,1,9,9\r\n");
    client.is_refused("no command");
    let mut client = Client::new(&bed);
    client.send("\u{1}\u{2}\r\n");
    client.is_refused("no command");
    let totals = bed.rule_totals();
    assert_eq!((totals.ftp_long_line, totals.ftp_malformed), (1, 2));
}

#[test]
fn fronts_d5_what_is_no_command_does_not_end_the_session() {
    let bed = bed();
    let mut client = Client::new(&bed);
    client.send("\r\n\r\nX-SHA512 file\r\n NOOP\r\n\r\nNOOP\r\n");
    let answers = [client.line(), client.line(), client.line()];
    assert_eq!(
        answers,
        ["500 That is no command", "500 That is no command", "200 Ok"]
    );
    assert_eq!(bed.rule_totals().ftp_malformed, 2);
}

/// A member that greets, answers the first command so, and all others with "200 Ok".
fn answers_first(answer: &str) -> Bed {
    let answer = answer.to_owned();
    let odd = member(move |_, stream| {
        let mut commands = BufReader::new(stream.try_clone().unwrap());
        let mut control = stream;
        let _ = control.write_all(b"220-Welcome\r\n220 Ready\r\n");
        let mut answer = Some(&*answer);
        while !line(&mut commands).is_empty() {
            let answer = answer.take().unwrap_or("200 Ok");
            let _ = control.write_all(format!("{answer}\r\n").as_bytes());
        }
    });
    Bed::new(Ftp, &[odd], |_| {})
}

#[test]
fn fronts_d4_an_answer_to_pasv_without_address_does_not_end_the_session() {
    let garbled = [
        "227 Somewhere",
        "227 (127,0,0,1,0,22)",
        "227-(1,2,3,4,5)\r\n227 End",
        "200 Fine",
    ];
    for garbled in garbled {
        let bed = answers_first(garbled);
        let mut client = Client::new(&bed);
        let answer = client.ask("PASV");
        assert!(answer.starts_with("502 "), "{garbled}: {answer}");
        assert_eq!(client.ask("NOOP"), "200 Ok");
        assert_eq!(bed.rule_totals().ftp_member_reply, 1);
    }
}

#[test]
fn a_garbled_reply_ends_the_session() {
    let long = "x".repeat(5000);
    let nothing = "HTTP/1.1 400 Bad Request\r\n".repeat(101);
    for garbled in ["227 (127,0,0,1,9,9)", &long, &nothing] {
        let bed = answers_first(garbled);
        let mut client = Client::new(&bed);
        client.send("SYST\r\n");
        client.is_refused("not understood");
        assert_eq!(bed.next_record().end, End::Member);
        assert_eq!(bed.rule_totals().ftp_member_reply, 1);
    }
}

#[test]
fn data_ends_with_its_session_as_cut() {
    let bed = bed();
    let mut client = Client::new(&bed);
    let mut data = client.connect();
    assert_eq!(client.ask("STOR x"), "150 Go");
    data.write_all(b"half").unwrap();
    // A reset: the client is gone.
    let control = socket2::SockRef::from(client.control.get_ref());
    control.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let cut = data.read(&mut [0]).unwrap_err();
    assert_eq!(cut.kind(), std::io::ErrorKind::ConnectionReset);
    let ends =
        [bed.next_record(), bed.next_record()].map(|record| (record.request.is_some(), record.end));
    assert!(ends.contains(&(true, End::Terminated)), "{ends:?}");
    assert!(ends.contains(&(false, End::Client)), "{ends:?}");
    bed.wait_until_idle();
}

#[test]
fn a_long_transfer_keeps_its_control_connection_and_silence_does_not() {
    let idle = |rule: &mut evenkeel_manager::config::Rule| {
        rule.timeouts.idle = Duration::from_millis(1500);
    };
    let bed = Bed::new(Ftp, &[member(|_, stream| serve(stream))], idle);
    let mut client = Client::new(&bed);
    let mut data = client.connect();
    // Two seconds.
    assert_eq!(client.ask("RETR slowly"), "150 Go");
    assert_eq!(read_all(&mut data), b"x".repeat(20));
    drop(data);
    assert_eq!(client.line(), "226 Done");
    client.is_refused("for too long");
    let ends = [bed.next_record().end, bed.next_record().end];
    assert_eq!(ends, [End::Complete, End::ClientTimeout]);
    assert_eq!(bed.rule_totals().client_timeouts, 1);
}

#[test]
fn a_data_connection_that_nobody_opens_is_given_up() {
    let bed = Bed::new(Ftp, &[member(|_, stream| serve(stream))], |rule| {
        rule.ftp.data_timeout = Duration::from_millis(100);
    });
    let mut client = Client::new(&bed);
    let address = client.passive();
    while bed.rule_totals().ftp_unconnected == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    TcpStream::connect(address).unwrap_err();
    assert_eq!(client.ask("NOOP"), "200 Ok", "the session goes on");
}

#[test]
fn a_member_that_dies_is_told_to_the_client() {
    let dying = member(|_, mut stream| {
        stream.write_all(b"220-Welcome\r\n220 Ready\r\n").unwrap();
        let _ = stream.read(&mut [0; 9]);
    });
    let bed = Bed::new(Ftp, &[dying], |_| {});
    let mut client = Client::new(&bed);
    client.send("NOOP\r\n");
    client.is_refused("closed the connection");
    assert_eq!(bed.next_record().end, End::Member);
    let bed = Bed::new(Ftp, &[closed_address()], |_| {});
    let mut client = Client {
        control: BufReader::new(bed.connect_client()),
    };
    client.is_refused("No server");
}

#[test]
fn an_alert_ends_sessions_that_wait_for_nothing() {
    let alert = AlertSettings {
        close_idle: Some(Duration::from_millis(100)),
        shed_time: Duration::ZERO,
        ..AlertSettings::default()
    };
    let settings = GroupSettings {
        alert,
        ..GroupSettings::default()
    };
    let members = members(&[member(|_, stream| serve(stream))]);
    let bed = Bed::with_group(Ftp, group(members, settings), 16, |_| {});
    let (mut idle, mut busy, mut about_to) =
        (Client::new(&bed), Client::new(&bed), Client::new(&bed));
    let mut data = busy.connect();
    assert_eq!(busy.ask("RETR slowly"), "150 Go");
    let address = about_to.passive();
    bed.group.current.load().members()[0]
        .slot
        .set(Reason::Shedding, true);
    idle.is_refused("connect again");
    assert_eq!(bed.next_record().end, End::Alert);
    assert_eq!(read_all(&mut data), b"x".repeat(20));
    drop(data);
    assert_eq!(busy.line(), "226 Done");
    busy.is_refused("connect again");
    // What was prepared is used.
    let mut data = TcpStream::connect(address).unwrap();
    set_timeouts(&data);
    assert_eq!(about_to.ask("RETR 5"), "150 Go");
    assert_eq!(read_all(&mut data), byte_pattern(5));
    drop(data);
    assert_eq!(about_to.line(), "226 Done");
    about_to.is_refused("connect again");
    // Two transfers and two sessions; the client sees the end a moment before it is counted.
    let rest: Vec<_> = (0..4).map(|_| bed.next_record()).collect();
    let of_alert = |record: &&Record<'_>| record.end == End::Alert;
    assert_eq!(rest.iter().filter(of_alert).count(), 2);
    assert_eq!(bed.rule_totals().closed_by_alert, 3);
}

#[test]
fn the_end_of_the_process_is_told() {
    let bed = bed();
    let mut client = Client::new(&bed);
    bed.proxy.drain(Duration::ZERO);
    client.is_refused("service ends");
    assert_eq!(bed.next_record().end, End::Terminated);
}

#[test]
fn a_thousand_sessions_transfer_at_once() {
    const SESSIONS: usize = 1000;
    const BYTES: usize = 200_000;
    let bed = Bed::new(Ftp, &[member(|_, stream| serve(stream))], |rule| {
        rule.max_connections = 2000;
    });
    if bed.proxy.client_counts().0 < 5 * SESSIONS {
        // The other ends are files of this process, too.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: too few open files allowed for a thousand sessions of FTP"
        );
        return;
    }
    let mut sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let mut client = Client::new(&bed);
            let data = client.connect();
            client.send(format!("RETR {BYTES}\r\n"));
            (client, data)
        })
        .collect();
    for (client, _) in &mut sessions {
        assert_eq!(client.line(), "150 Go");
    }
    assert_eq!(bed.in_flight(), SESSIONS as u32);
    let expected = byte_pattern(BYTES);
    for (mut client, mut data) in sessions {
        assert!(read_all(&mut data) == expected);
        drop(data);
        assert_eq!(client.line(), "226 Done");
        assert_eq!(client.ask("QUIT"), "221 Bye");
        assert_eq!(client.line(), "");
    }
    // The client sees the end a moment before it is counted.
    for _ in 0..2 * SESSIONS {
        assert_eq!(bed.next_record().end, End::Complete);
    }
    let totals = bed.rule_totals();
    assert_eq!(totals.ftp_data_bytes_out, (SESSIONS * BYTES) as u64);
    assert_eq!(totals.connections, SESSIONS as u64);
    bed.wait_until_idle();
}
