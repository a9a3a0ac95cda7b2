//! Conversations as clients and servers have them.

use proptest::prelude::*;

use super::*;

fn settings() -> Settings {
    Settings {
        client: "192.0.2.7".parse().unwrap(),
        server_is_v6: false,
        auth: Auth::Refuse,
        require_tls: false,
    }
}

/// A conversation, and what it has written.
struct Talk {
    conversation: Conversation,
    out: Output,
}

impl Talk {
    /// With a server that has greeted.
    fn new(settings: Settings) -> Self {
        let mut talk = Talk {
            conversation: Conversation::new(settings),
            out: Output::default(),
        };
        assert!(!talk.conversation.takes(b"NOOP"));
        talk.reply("220 Hello");
        assert_eq!(talk.for_client(), "220 Hello\r\n");
        talk
    }

    #[track_caller]
    fn command(&mut self, line: &str) -> Step {
        self.try_command(line).unwrap()
    }

    #[track_caller]
    fn try_command(&mut self, line: &str) -> Result<Step, Refusal> {
        assert!(
            self.conversation.takes(line.as_bytes()),
            "{line} has to wait"
        );
        self.conversation
            .command(line.as_bytes(), false, &mut self.out)
    }

    #[track_caller]
    fn reply(&mut self, line: &str) -> Step {
        self.try_reply(line).unwrap()
    }

    fn try_reply(&mut self, line: &str) -> Result<Step, Refusal> {
        self.conversation.reply(line.as_bytes(), &mut self.out)
    }

    fn for_client(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.out.client)).unwrap()
    }

    fn for_server(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.out.server)).unwrap()
    }

    /// A command that is answered here.
    #[track_caller]
    fn answered(&mut self, line: &str, code: &str) {
        assert_eq!(self.command(line), Step::Nothing);
        let answer = self.for_client();
        assert!(answer.starts_with(code), "{line}: {answer}");
        assert_eq!(self.for_server(), "", "{line}");
        assert!(self.conversation.is_at_rest());
    }
}

fn open(mode: Mode, port: u16) -> Step {
    Step::Open(Opening { mode, port })
}

/// Lines, with whether each was interrupted, of bytes that come in pieces of `size`.
fn lines(mut lines: Lines, bytes: &[u8], size: usize) -> Result<Vec<(Vec<u8>, bool)>, Refusal> {
    let mut all = Vec::new();
    for piece in bytes.chunks(size) {
        let mut piece = piece;
        while !piece.is_empty() {
            let taken = lines.take(piece)?;
            piece = &piece[taken.used..];
            if taken.ended {
                all.push((lines.line().to_vec(), lines.is_interrupted()));
            }
        }
    }
    Ok(all)
}

#[test]
fn lines_end_where_they_end_however_they_come() {
    let bytes = b"USER a\r\nPASS b c\n\xff\xf4\xff\xf2ABOR\r\n\xff\xfb\x01RETR \xff\xff\xff\xfa\xff\xff\x01\xff\xf0x\r\n\r\nQU";
    for size in 1..bytes.len() {
        let found = lines(Lines::of_client(), bytes, size).unwrap();
        let expected: [(&[u8], bool); 5] = [
            (b"USER a", false),
            (b"PASS b c", false),
            (b"ABOR", true),
            (b"RETR \xffx", false),
            (b"", false),
        ];
        let expected = expected.map(|(line, interrupted)| (line.to_vec(), interrupted));
        assert_eq!(found, expected, "in pieces of {size}");
    }
    let server = lines(Lines::of_server(), b"211-\xff\xff\ra\r\n b\n", 2).unwrap();
    let server: Vec<_> = server.into_iter().map(|(line, _)| line).collect();
    assert_eq!(server, [&b"211-\xff\xff\ra"[..], b" b"]);
}

#[test]
fn what_could_be_two_lines_to_somebody_is_none() {
    for bytes in [
        &b"NOOP\rPORT 1\r\n"[..],
        b"NOOP\r\r\n",
        b"NO\0OP\r\n",
        b"NOOP\r\0\r\n",
    ] {
        assert_eq!(lines(Lines::of_client(), bytes, 3), Err(Refusal::Malformed));
    }
}

#[test]
fn a_line_has_a_limit_with_its_escapes() {
    let fits = [vec![b'a'; MAX_LINE - 2], b"\r\n".to_vec()].concat();
    assert_eq!(lines(Lines::of_client(), &fits, 1000).unwrap().len(), 1);
    let twice = [&fits[..], &fits].concat();
    assert_eq!(lines(Lines::of_server(), &twice, 1000).unwrap().len(), 2);
    for bytes in [vec![b'a'; MAX_LINE], [255, 241].repeat(MAX_LINE / 2)] {
        let result = lines(Lines::of_client(), &bytes, 999);
        assert_eq!(result, Err(Refusal::LongLine));
    }
}

#[test]
fn addresses_are_read_as_they_are_written() {
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    assert_eq!(read_port(b"127,0,0,1,4,1").unwrap().1, 1025);
    for wrong in [
        "",
        "1,2,3,4,5",
        "1,2,3,4,5,6,7",
        "256,2,3,4,5,6",
        "1,2,3,4,5,-6",
        "1, 2,3,4,5,6",
    ] {
        assert_eq!(read_port(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(
        read_eprt(b"|1|192.0.2.1|6275|"),
        Some(Some((ip("192.0.2.1"), 6275)))
    );
    assert_eq!(read_eprt(b"!2!::1!6275!"), Some(Some((ip("::1"), 6275))));
    assert_eq!(read_eprt(b"|3|::1|6275|"), Some(None));
    for wrong in [
        "",
        "|1|::1|6275|",
        "|1|192.0.2.1|6275",
        "|1|192.0.2.1|65536|",
        "|1|192.0.2.1|6275|x",
        "1111",
    ] {
        assert_eq!(read_eprt(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(
        read_pasv_reply(b"Entering Passive Mode (10,0,0,1,200,13)."),
        Some(51213)
    );
    assert_eq!(read_pasv_reply(b"=127,0,0,1,4,0"), Some(1024));
    for wrong in [
        "",
        "no digits",
        "Entering (1,2,3,4,5)",
        "(1,2,3,4,5,6,7)",
        "(999,2,3,4,5,6)",
        "2 (1,2,3,4,5,6)",
    ] {
        assert_eq!(read_pasv_reply(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(
        read_epsv_reply(b"Entering Extended Passive Mode (|||6446|)"),
        Some(6446)
    );
    for wrong in [
        "",
        "(|||6446|",
        "(||1|6446|)",
        "(|||6446)",
        "(|||66446|)",
        "(|||6446||)",
        "(1111)",
    ] {
        assert_eq!(read_epsv_reply(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn passive_names_our_address_and_the_members_port_only() {
    let mut talk = Talk::new(settings());
    talk.command("PASV");
    assert_eq!(talk.for_server(), "PASV\r\n");
    let step = talk.reply("227 Entering Passive Mode (10,9,8,7,200,13).");
    assert_eq!(step, open(Mode::Passive, 51213));
    assert_eq!(talk.for_client(), "");
    assert!(
        !talk.conversation.takes(b"RETR x"),
        "the client knows nothing yet"
    );
    let Talk { conversation, out } = &mut talk;
    conversation.listening("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(
        talk.for_client(),
        "227 Entering Passive Mode (198,51,100,1,117,48).\r\n"
    );
    talk.command("EPSV");
    assert_eq!(talk.reply("229 Ok (|||2000|)"), open(Mode::Passive, 2000));
    let Talk { conversation, out } = &mut talk;
    conversation.listening("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(
        talk.for_client(),
        "229 Entering Extended Passive Mode (|||30000|)\r\n"
    );
    talk.command("PASV");
    talk.reply("227 (10,9,8,7,200,13)");
    let Talk { conversation, out } = &mut talk;
    let announced = Some("203.0.113.9".parse().unwrap());
    conversation.listening("198.51.100.1:30000".parse().unwrap(), announced, out);
    assert!(talk.for_client().contains("(203,0,113,9,117,48)"));
    // A refusal is the client's.
    talk.command("PASV");
    assert_eq!(talk.reply("530 Please login"), Step::Nothing);
    assert_eq!(talk.for_client(), "530 Please login\r\n");
    assert!(talk.conversation.is_at_rest());
}

#[test]
fn passive_is_translated_between_the_families() {
    let mut talk = Talk::new(Settings {
        server_is_v6: true,
        ..settings()
    });
    talk.command("PASV");
    assert_eq!(talk.for_server(), "EPSV\r\n");
    assert_eq!(talk.reply("229 (|||2000|)"), open(Mode::Passive, 2000));
    let Talk { conversation, out } = &mut talk;
    conversation.listening("198.51.100.1:30000".parse().unwrap(), None, out);
    assert!(talk.for_client().starts_with("227 "));

    let mut talk = Talk::new(Settings {
        client: "2001:db8::1".parse().unwrap(),
        ..settings()
    });
    talk.answered("PASV", "522");
    talk.answered("EPSV 1", "522 Network protocol not supported, use (2)");
    talk.command("EPSV 2");
    assert_eq!(talk.for_server(), "PASV\r\n");
    assert_eq!(talk.reply("227 (1,2,3,4,5,6)"), open(Mode::Passive, 1286));
    let Talk { conversation, out } = &mut talk;
    conversation.listening("[2001:db8::9]:30000".parse().unwrap(), None, out);
    assert!(talk.for_client().starts_with("229 "));
}

#[test]
fn after_epsv_all_there_is_nothing_else() {
    let mut talk = Talk::new(settings());
    talk.answered("EPSV ALL", "200");
    talk.answered("PASV", "501");
    talk.answered("PORT 192,0,2,7,5,6", "501");
    talk.answered("EPRT |1|192.0.2.7|5555|", "501");
    talk.command("EPSV");
    assert_eq!(talk.for_server(), "EPSV\r\n");
}

#[test]
fn a_garbled_answer_to_pasv_ends_it() {
    for garbled in [
        "227 Entering Passive Mode",
        "227 (1,2,3,4,0,21)",
        "227-(1,2,3,4,5,6)",
        "229 (|||2000|)",
        "200 Fine",
        "HTTP/1.1 200 OK",
        "99 x",
        "",
    ] {
        let mut talk = Talk::new(settings());
        talk.command("PASV");
        assert_eq!(talk.try_reply(garbled), Err(Refusal::Reply), "{garbled}");
        assert_eq!(talk.for_client(), "", "{garbled}");
    }
    for unasked in ["227 (1,2,3,4,5,6)", "229 (|||2000|)", "228 (x)", "234 TLS"] {
        let mut talk = Talk::new(settings());
        assert_eq!(talk.try_reply(unasked), Err(Refusal::Reply), "{unasked}");
        talk.command("SYST");
        assert_eq!(talk.try_reply(unasked), Err(Refusal::Reply), "{unasked}");
    }
}

#[test]
fn active_names_our_address_to_the_server() {
    let mut talk = Talk::new(settings());
    assert_eq!(
        talk.command("PORT 192,0,2,7,200,13"),
        open(Mode::Active, 51213)
    );
    assert!(!talk.conversation.takes(b"NOOP"));
    let Talk { conversation, out } = &mut talk;
    conversation.listening("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(talk.for_server(), "PORT 198,51,100,1,117,48\r\n");
    assert_eq!(talk.reply("200 PORT command successful"), Step::Nothing);
    assert_eq!(talk.for_client(), "200 PORT command successful\r\n");
    assert_eq!(
        talk.command("EPRT |1|192.0.2.7|51213|"),
        open(Mode::Active, 51213)
    );
    let Talk { conversation, out } = &mut talk;
    conversation.listening("[2001:db8::1]:30000".parse().unwrap(), None, out);
    assert_eq!(talk.for_server(), "EPRT |2|2001:db8::1|30000|\r\n");
    assert_eq!(talk.reply("500 What?"), Step::Close);
    talk.for_client();
    talk.answered("EPRT |7|x|1|", "522");
    talk.answered("PORT nonsense", "501");
    talk.answered("LPRT 4,4,1,2,3,4,2,5,6", "502");
}

#[test]
fn a_bounce_ends_it() {
    for bounce in [
        "PORT 192,0,2,8,200,13",
        "PORT 192,0,2,7,0,25",
        "port 127,0,0,1,200,13",
        "EPRT |1|10.0.0.1|51213|",
        "EPRT |2|::1|51213|",
        "EPRT |1|192.0.2.7|25|",
    ] {
        let mut talk = Talk::new(settings());
        assert_eq!(talk.try_command(bounce), Err(Refusal::Bounce), "{bounce}");
        assert_eq!(talk.for_server(), "");
    }
    let mut talk = Talk::new(settings());
    // The same address in the form of IPv6.
    let own = "EPRT |2|::ffff:192.0.2.7|51213|";
    assert_eq!(talk.command(own), open(Mode::Active, 51213));
    let mut talk = Talk::new(settings());
    assert_eq!(talk.command("EPRT |2|::|51213|"), open(Mode::Active, 51213));
}

#[test]
fn commands_wait_for_replies_but_for_those_of_transfers() {
    let mut talk = Talk::new(settings());
    assert_eq!(talk.command("RETR a"), Step::Transfer(Transfer::Begun));
    assert!(
        !talk.conversation.takes(b"ABOR"),
        "nothing is known of it yet"
    );
    talk.reply("150 Here it comes");
    for waits in ["RETR b", "PASV", "PORT 1,2,3,4,5,6", "USER x", "?"] {
        assert!(!talk.conversation.takes(waits.as_bytes()), "{waits}");
    }
    // Lines of a status, which is no answer to the transfer.
    talk.command("STAT");
    talk.reply("213-Status");
    talk.reply("226 in the middle");
    talk.reply("213 End");
    talk.command("NOOP");
    assert_eq!(talk.reply("226 Done"), Step::Transfer(Transfer::Ended(226)));
    assert!(!talk.conversation.is_at_rest());
    talk.reply("200 NOOP");
    assert!(talk.conversation.is_at_rest());
}

#[test]
fn a_second_preliminary_reply_is_the_last() {
    let mut talk = Talk::new(settings());
    talk.command("RETR a");
    for line in ["150-Accepted", "150 Here it comes", "110 MARK"] {
        assert_eq!(talk.reply(line), Step::Nothing);
    }
    let step = talk.reply("150 0.003 seconds");
    assert_eq!(step, Step::Transfer(Transfer::Ended(150)));
    assert!(talk.conversation.is_at_rest());
}

#[test]
fn abor_is_answered_once_or_twice() {
    let aborted = || {
        let mut talk = Talk::new(settings());
        talk.command("RETR a");
        talk.reply("150 Here it comes");
        talk.command("ABOR");
        talk
    };
    let mut talk = aborted();
    talk.reply("426 Failure writing");
    assert!(!talk.conversation.is_at_rest());
    talk.reply("226 ABOR successful");
    assert!(talk.conversation.is_at_rest());
    // It was over already: two that look alike.
    let mut talk = aborted();
    talk.reply("226 Transfer complete");
    talk.command("PASV");
    talk.reply("225 ABOR successful");
    assert_eq!(talk.reply("227 (1,2,3,4,5,6)"), open(Mode::Passive, 1286));
    // One for both.
    let mut talk = aborted();
    talk.reply("226 ABOR successful");
    talk.command("PASV");
    assert_eq!(talk.reply("227 (1,2,3,4,5,6)"), open(Mode::Passive, 1286));
}

#[test]
fn an_interrupt_reaches_the_server() {
    let mut talk = Talk::new(settings());
    talk.command("RETR a");
    talk.reply("150 Here it comes");
    talk.for_server();
    let Talk { conversation, out } = &mut talk;
    conversation.command(b"ABOR", true, out).unwrap();
    assert_eq!(out.server, b"\xff\xf4\xff\xf2ABOR\r\n");
    assert_eq!(out.urgent, Some(3));
}

#[test]
fn without_tls_nobody_hears_of_it() {
    let mut talk = Talk::new(settings());
    for command in ["AUTH TLS", "PBSZ 0", "PROT P", "CCC", "ADAT x", "ENC x"] {
        talk.answered(command, "502");
    }
    talk.command("FEAT");
    for line in [
        "211-Features:",
        " AUTH TLS;SSL",
        " EPSV",
        "211-PROT",
        " pbsz",
        "211 End",
    ] {
        talk.reply(line);
    }
    assert_eq!(talk.for_client(), "211-Features:\r\n EPSV\r\n211 End\r\n");
}

#[test]
fn tls_ends_here() {
    let mut talk = Talk::new(Settings {
        auth: Auth::End,
        require_tls: true,
        ..settings()
    });
    talk.answered("USER a", "530");
    talk.answered("PBSZ 0", "503");
    talk.answered("AUTH GSSAPI", "504");
    assert_eq!(talk.command("AUTH TLS"), Step::Secure);
    assert!(talk.for_client().starts_with("234 "));
    talk.conversation.secured();
    talk.answered("AUTH TLS", "503");
    talk.answered("PROT P", "503");
    talk.answered("PBSZ 0", "200 PBSZ=0");
    talk.answered("LIST", "522");
    talk.answered("PROT C", "534");
    talk.answered("PROT E", "536");
    assert!(!talk.conversation.protects_data());
    talk.answered("PROT P", "200");
    assert!(talk.conversation.protects_data());
    talk.answered("CCC", "534");
    talk.answered("REIN", "502");
    talk.command("USER a");
    assert_eq!(talk.for_server(), "USER a\r\n");
    talk.reply("331 Password?");
    talk.for_client();
    talk.command("FEAT");
    talk.reply("211-Features:");
    talk.reply(" AUTH SSL");
    talk.reply("211 End");
    let ours = "211-Features:\r\n AUTH TLS\r\n PBSZ\r\n PROT\r\n211 End\r\n";
    assert_eq!(talk.for_client(), ours);
    talk.command("FEAT");
    talk.reply("500 What?");
    assert_eq!(talk.for_client(), ours);
}

#[test]
fn tls_passes() {
    let mut talk = Talk::new(Settings {
        auth: Auth::Pass,
        ..settings()
    });
    talk.command("AUTH TLS");
    assert_eq!(talk.reply("534 Not today"), Step::Nothing);
    talk.command("AUTH TLS");
    assert_eq!(talk.reply("234 Go"), Step::Tunnel);
    assert_eq!(talk.for_client(), "534 Not today\r\n234 Go\r\n");
}

#[test]
fn after_quit_nothing_is_taken() {
    let mut talk = Talk::new(settings());
    talk.command("QUIT");
    talk.reply("221 Bye");
    assert!(talk.conversation.has_quit() && !talk.conversation.takes(b"NOOP"));
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"PASV\r\n".to_vec()),
        Just(b"EPSV\r\n".to_vec()),
        Just(b"RETR a\r\n".to_vec()),
        Just(b"PORT 192,0,2,7,9,9\r\n".to_vec()),
        Just(b"ABOR\r\n".to_vec()),
        Just(b"227 (1,2,3,4,9,9)\r\n".to_vec()),
        Just(b"226 ok\r\n".to_vec()),
        Just(b"150 ok\r\n".to_vec()),
        Just(b"220 ok\r\n".to_vec()),
        Just(b"211-x\r\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    /// Whatever both sides send: the server is told no address but ours, and the client none but
    /// ours, and one command at a time has no preliminary reply.
    #[test]
    fn no_address_of_either_side_passes(client in bytes(), server in bytes(), size in 1usize..20) {
        let mut conversation = Conversation::new(settings());
        let mut out = Output::default();
        let (mut commands, mut replies) = (Lines::of_client(), Lines::of_server());
        let (mut client, mut server) = (&client[..], &server[..]);
        let mut waiting = false;
        let ours = "198.51.100.1:30000".parse().unwrap();
        let mut go = || -> Result<(), Refusal> {
            loop {
                let mut steps = [Step::Nothing, Step::Nothing];
                if !waiting && !client.is_empty() {
                    let taken = commands.take(&client[..client.len().min(size)])?;
                    client = &client[taken.used..];
                    waiting = taken.ended;
                }
                if waiting && conversation.takes(commands.line()) {
                    waiting = false;
                    let interrupted = commands.is_interrupted();
                    steps[0] = conversation.command(commands.line(), interrupted, &mut out)?;
                } else if !server.is_empty() {
                    let taken = replies.take(&server[..server.len().min(size)])?;
                    server = &server[taken.used..];
                    if taken.ended {
                        steps[1] = conversation.reply(replies.line(), &mut out)?;
                    }
                } else if waiting || client.is_empty() {
                    return Ok(());
                }
                if steps.iter().any(|step| matches!(step, Step::Open(_))) {
                    conversation.listening(ours, None, &mut out);
                }
            }
        };
        let _ = go();
        let has = |text: &[u8], what: &[u8]| text.windows(what.len()).any(|part| part == what);
        prop_assert!(!has(&out.server, b"192,0,2,7"));
        for line in out.client.split(|byte| *byte == b'\n') {
            if line.starts_with(b"227 ") && !has(&out.client, b"211-") {
                prop_assert!(has(line, b"198,51,100,1"));
            }
        }
    }
}
