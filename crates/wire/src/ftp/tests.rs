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
    /// Starts a talk with a server that has greeted.
    fn new(settings: Settings) -> Self {
        let mut talk = Talk {
            conversation: Conversation::new(settings),
            out: Output::default(),
        };
        assert!(!talk.conversation.may_take(b"NOOP"));
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
            self.conversation.may_take(line.as_bytes()),
            "{line} has to wait"
        );
        self.conversation
            .take_command(line.as_bytes(), false, &mut self.out)
    }

    #[track_caller]
    fn reply(&mut self, line: &str) -> Step {
        self.try_reply(line).unwrap()
    }

    fn try_reply(&mut self, line: &str) -> Result<Step, Refusal> {
        self.conversation.take_reply(line.as_bytes(), &mut self.out)
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
            if taken.line_ended {
                all.push((lines.current_line().to_vec(), lines.is_interrupted()));
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
    for (text, port) in [
        ("Passive mode 1 (127,0,0,1,4,1)", 1025),
        ("Entering Passive Mode (127, 0, 0, 1, 4, 2)", 1026),
        ("mode 2, 127 ,0,0,1,4,3 then (1,2,3,4,5,6)", 1286),
        ("(1,2,3,4,5), 127,0,0,1,4,4,", 1028),
    ] {
        assert_eq!(read_pasv_reply(text.as_bytes()), Some(port), "{text}");
    }
    for wrong in [
        "",
        "no digits",
        "Entering (1,2,3,4,5)",
        "(1,2,3,4,5,6,7)",
        "(999,2,3,4,5,6)",
        "1 2 3 4 5 6",
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
        !talk.conversation.may_take(b"RETR x"),
        "the client knows nothing yet"
    );
    let Talk { conversation, out } = &mut talk;
    conversation.announce_listener("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(
        talk.for_client(),
        "227 Entering Passive Mode (198,51,100,1,117,48).\r\n"
    );
    talk.command("EPSV");
    assert_eq!(talk.reply("229 Ok (|||2000|)"), open(Mode::Passive, 2000));
    let Talk { conversation, out } = &mut talk;
    conversation.announce_listener("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(
        talk.for_client(),
        "229 Entering Extended Passive Mode (|||30000|)\r\n"
    );
    talk.command("PASV");
    talk.reply("227 (10,9,8,7,200,13)");
    let Talk { conversation, out } = &mut talk;
    let announced = Some("203.0.113.9".parse().unwrap());
    conversation.announce_listener("198.51.100.1:30000".parse().unwrap(), announced, out);
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
    conversation.announce_listener("198.51.100.1:30000".parse().unwrap(), None, out);
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
    conversation.announce_listener("[2001:db8::9]:30000".parse().unwrap(), None, out);
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

/// Any reply may have several lines (RFC 959, section 4.2; RFC 2389, section 2.2). None of them is
/// passed on, as each may name the server's address.
#[test]
fn fronts_d2_the_address_may_be_in_any_line() {
    for lines in [
        &["227-Passive", "227 Entering Passive Mode (10,9,8,7,200,13)"][..],
        &["227-Passive (10,9,8,7,200,13)", "227 End"],
        &["227-Note", " (10,9,8,7,200,13)", "", "227 End"],
        &["227-1 (1,2,3,4,5,6)", "227 (10,9,8,7,200,13)"],
    ] {
        let mut talk = Talk::new(settings());
        talk.command("PASV");
        let (last, before) = lines.split_last().unwrap();
        for line in before {
            assert_eq!(talk.reply(line), Step::Nothing, "{lines:?}");
        }
        assert_eq!(talk.reply(last), open(Mode::Passive, 51213), "{lines:?}");
        assert_eq!(talk.for_client(), "", "{lines:?}");
    }
    let mut talk = Talk::new(settings());
    talk.command("EPSV");
    talk.reply("229-Extended");
    assert_eq!(talk.reply("229 (|||2000|)"), open(Mode::Passive, 2000));
    // A refusal of several lines is the client's.
    let mut talk = Talk::new(settings());
    talk.command("PASV");
    talk.reply("530-Please");
    assert_eq!(talk.reply("530 login"), Step::Nothing);
    assert_eq!(talk.for_client(), "530-Please\r\n530 login\r\n");
    assert!(talk.conversation.is_at_rest());
}

/// The client is told so, as no address of the server's may pass, and may ask in another way.
#[test]
fn fronts_d4_an_answer_to_pasv_without_address_is_refused_and_the_session_goes_on() {
    for garbled in [
        &["227 Entering Passive Mode"][..],
        &["227 (1,2,3,4,0,21)"],
        &["227-Passive", "227 (1,2,3,4,0,21)"],
        &["229 (|||2000|)"],
        &["228 (x)"],
        &["200 Fine (1,2,3,4,5,6)"],
        &["200-Fine", "200 (1,2,3,4,5,6)"],
    ] {
        let mut talk = Talk::new(settings());
        talk.command("PASV");
        let (last, before) = garbled.split_last().unwrap();
        before
            .iter()
            .for_each(|line| assert_eq!(talk.reply(line), Step::Nothing));
        assert_eq!(
            talk.reply(last),
            Step::Refused(Refusal::Reply),
            "{garbled:?}"
        );
        let answer = talk.for_client();
        assert!(answer.starts_with("502 "), "{garbled:?}: {answer}");
        assert!(talk.conversation.is_at_rest());
        talk.command("EPSV");
        assert_eq!(talk.reply("229 (|||2000|)"), open(Mode::Passive, 2000));
    }
    for garbled in ["229 (||2000|)", "200 EPSV (|||2000|)", "227 (1,2,3,4,5,6)"] {
        let mut talk = Talk::new(settings());
        talk.command("EPSV");
        assert_eq!(
            talk.reply(garbled),
            Step::Refused(Refusal::Reply),
            "{garbled}"
        );
        assert_eq!(
            talk.for_client(),
            "502 The server names no port: use PASV\r\n"
        );
        talk.command("PASV");
        assert_eq!(talk.reply("227 (1,2,3,4,5,6)"), open(Mode::Passive, 1286));
    }
}

#[test]
fn an_address_that_nobody_asked_for_ends_it() {
    for unasked in ["227 (1,2,3,4,5,6)", "229 (|||2000|)", "228 (x)", "234 TLS"] {
        let mut talk = Talk::new(settings());
        assert_eq!(talk.try_reply(unasked), Err(Refusal::Reply), "{unasked}");
        talk.command("SYST");
        assert_eq!(talk.try_reply(unasked), Err(Refusal::Reply), "{unasked}");
        // Nor within a reply that ends with another code.
        let mut talk = Talk::new(settings());
        talk.command("SYST");
        talk.reply("215-x");
        talk.reply(unasked);
        let Talk { conversation, out } = &mut talk;
        assert_eq!(
            conversation.end_loosely(out),
            Err(Refusal::Reply),
            "{unasked}"
        );
    }
}

/// Clients pass over such lines, and so they are left out; whoever sends nothing else speaks
/// something else.
#[test]
fn fronts_d4_lines_that_belong_to_no_reply_are_left_out() {
    let mut conversation = Conversation::new(settings());
    let mut out = Output::default();
    for line in [
        "",
        "Welcome",
        " 220 here",
        "99 x",
        "2200 clients",
        "220 Hello",
        "",
    ] {
        let step = conversation.take_reply(line.as_bytes(), &mut out);
        assert_eq!(step, Ok(Step::Nothing), "{line}");
    }
    assert_eq!(out.client, b"220 Hello\r\n");
    assert_eq!(conversation.greeting_code(), Some(220));
    assert!(conversation.is_at_rest());
    let mut talk = Talk { conversation, out };
    talk.for_client();
    talk.command("RETR x");
    talk.reply("Opening");
    talk.reply("150 Go");
    assert_eq!(talk.for_client(), "150 Go\r\n");
    for _ in 0..100 {
        assert_eq!(talk.reply("HTTP/1.1 200 OK"), Step::Nothing);
    }
    assert_eq!(talk.try_reply(""), Err(Refusal::Reply));
}

/// Behind the code stands no space: such a reply passes as it is.
#[test]
fn fronts_d4_a_code_may_be_followed_by_anything() {
    let mut talk = Talk::new(settings());
    for odd in ["250\ttext", "250text", "250", "250."] {
        talk.command("CWD x");
        assert_eq!(talk.reply(odd), Step::Nothing);
        assert_eq!(talk.for_client(), format!("{odd}\r\n"));
        assert!(talk.conversation.is_at_rest(), "{odd}");
    }
}

/// Most clients take a line with a code and a space for the end, whatever the first line had; by
/// the RFC it is not. So it is when nothing more comes.
#[test]
fn fronts_d4_a_reply_that_ends_with_another_code_ends_when_nothing_follows() {
    let mut talk = Talk::new(settings());
    for (command, lines, next) in [
        ("CWD x", &["250-note", "200 ok"][..], Step::Nothing),
        ("CWD x", &["250-note", "250\tok", ""], Step::Nothing),
        ("RETR x", &["553-note", "150 Go"], Step::Nothing),
    ] {
        talk.command(command);
        for line in lines {
            assert!(!talk.conversation.has_loose_end() || line.is_empty());
            talk.reply(line);
        }
        assert!(talk.conversation.has_loose_end(), "{lines:?}");
        assert!(!talk.conversation.may_take(b"NOOP"));
        let Talk { conversation, out } = &mut talk;
        assert_eq!(conversation.end_loosely(out), Ok(next));
        assert_eq!(talk.for_client(), lines.join("\r\n") + "\r\n");
    }
    // The transfer has begun.
    assert_eq!(talk.reply("226 Done"), Step::Transfer(Transfer::Ended(226)));
    // Something follows: the RFC is right.
    talk.command("STAT");
    for line in ["213-x", "226 in the middle", "213-more"] {
        talk.reply(line);
    }
    assert!(!talk.conversation.has_loose_end());
    talk.reply("213 End");
    assert!(talk.conversation.is_at_rest());
    // The address is replaced there, too.
    for (lines, step) in [
        (["553-x", "227 (1,2,3,4,5,6)"], open(Mode::Passive, 1286)),
        (["227-x", "553 no"], Step::Refused(Refusal::Reply)),
        (["553-x", "553\tno"], Step::Nothing),
    ] {
        let mut talk = Talk::new(settings());
        talk.command("PASV");
        lines
            .iter()
            .for_each(|line| assert_eq!(talk.reply(line), Step::Nothing));
        let Talk { conversation, out } = &mut talk;
        assert_eq!(conversation.end_loosely(out), Ok(step), "{lines:?}");
        assert!(!talk.for_client().contains("1,2,3,4"));
    }
}

#[test]
fn active_names_our_address_to_the_server() {
    let mut talk = Talk::new(settings());
    assert_eq!(
        talk.command("PORT 192,0,2,7,200,13"),
        open(Mode::Active, 51213)
    );
    assert!(!talk.conversation.may_take(b"NOOP"));
    let Talk { conversation, out } = &mut talk;
    conversation.announce_listener("198.51.100.1:30000".parse().unwrap(), None, out);
    assert_eq!(talk.for_server(), "PORT 198,51,100,1,117,48\r\n");
    assert_eq!(talk.reply("200 PORT command successful"), Step::Nothing);
    assert_eq!(talk.for_client(), "200 PORT command successful\r\n");
    assert_eq!(
        talk.command("EPRT |1|192.0.2.7|51213|"),
        open(Mode::Active, 51213)
    );
    let Talk { conversation, out } = &mut talk;
    conversation.announce_listener("[2001:db8::1]:30000".parse().unwrap(), None, out);
    assert_eq!(talk.for_server(), "EPRT |2|2001:db8::1|30000|\r\n");
    assert_eq!(talk.reply("500 What?"), Step::Close);
    talk.for_client();
    talk.answered("EPRT |7|x|1|", "522");
    talk.answered("PORT nonsense", "501");
    talk.answered("LPRT 4,4,1,2,3,4,2,5,6", "502");
}

/// A client behind a router may know only an address of its own network, and go on with PASV.
#[test]
fn fronts_d3_an_address_of_somebody_else_is_refused_and_the_session_goes_on() {
    let bounces = [
        "PORT 192,0,2,8,200,13",
        "PORT 192,0,2,7,0,25",
        "port 127,0,0,1,200,13",
        "EPRT |1|10.0.0.1|51213|",
        "EPRT |2|::1|51213|",
        "EPRT |1|192.0.2.7|25|",
    ];
    for bounce in bounces {
        let mut talk = Talk::new(settings());
        assert_eq!(talk.command(bounce), Step::Refused(Refusal::Bounce));
        let answer = talk.for_client();
        assert!(answer.starts_with("504 "), "{bounce}: {answer}");
        assert_eq!(talk.for_server(), "", "{bounce}");
        assert!(talk.conversation.is_at_rest());
        talk.command("PASV");
        assert_eq!(talk.reply("227 (1,2,3,4,5,6)"), open(Mode::Passive, 1286));
    }
    // Many are an attack.
    let mut talk = Talk::new(settings());
    for _ in 0..8 {
        assert_eq!(talk.command(bounces[0]), Step::Refused(Refusal::Bounce));
    }
    assert_eq!(talk.try_command(bounces[0]), Err(Refusal::Bounce));
    let mut talk = Talk::new(settings());
    // The same address in the form of IPv6.
    let own = "EPRT |2|::ffff:192.0.2.7|51213|";
    assert_eq!(talk.command(own), open(Mode::Active, 51213));
    let mut talk = Talk::new(settings());
    assert_eq!(talk.command("EPRT |2|::|51213|"), open(Mode::Active, 51213));
}

/// A server answers 500 and goes on (RFC 959, section 5.4), and nothing to an empty line.
#[test]
fn fronts_d5_what_is_no_command_is_answered_and_the_session_goes_on() {
    let mut talk = Talk::new(settings());
    let odd = [
        "X-SHA512 file",
        "ABCDEFGHIJKLMNOPQRST",
        " NOOP",
        "?",
        "\tNOOP",
        "é",
    ];
    for line in odd {
        assert_eq!(talk.command(line), Step::Refused(Refusal::Malformed));
        assert_eq!(talk.for_client(), "500 That is no command\r\n", "{line}");
        assert!(talk.conversation.is_at_rest());
    }
    // An empty line waits for no reply, and holds up no command.
    talk.command("RETR x");
    assert_eq!(talk.command(""), Step::Nothing);
    talk.reply("150 Go");
    assert_eq!(talk.command(""), Step::Nothing);
    assert_eq!(talk.for_client(), "150 Go\r\n");
    assert_eq!(talk.for_server(), "RETR x\r\n");
    talk.reply("226 Done");
    for _ in odd.len()..20 {
        assert_eq!(talk.command("?"), Step::Refused(Refusal::Malformed));
    }
    assert_eq!(talk.try_command("?"), Err(Refusal::Malformed));
    // What a browser sends, whose body has commands; and what is no text.
    for attack in ["Host: ftp.example.org", "\u{1}\u{2}", "X\u{7f} y"] {
        let mut talk = Talk::new(settings());
        assert_eq!(
            talk.try_command(attack),
            Err(Refusal::Malformed),
            "{attack}"
        );
    }
}

#[test]
fn commands_wait_for_replies_but_for_those_of_transfers() {
    let mut talk = Talk::new(settings());
    assert_eq!(talk.command("RETR a"), Step::Transfer(Transfer::Begun));
    assert!(
        !talk.conversation.may_take(b"ABOR"),
        "nothing is known of it yet"
    );
    talk.reply("150 Here it comes");
    for waits in ["RETR b", "PASV", "PORT 1,2,3,4,5,6", "USER x", "?"] {
        assert!(!talk.conversation.may_take(waits.as_bytes()), "{waits}");
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
    conversation.take_command(b"ABOR", true, out).unwrap();
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
    talk.conversation.mark_secured();
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
    assert!(talk.conversation.has_quit() && !talk.conversation.may_take(b"NOOP"));
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
        Just(b"227-x\r\n".to_vec()),
        Just(b"200 ok\r\n".to_vec()),
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
                    waiting = taken.line_ended;
                }
                if waiting && conversation.may_take(commands.current_line()) {
                    waiting = false;
                    let interrupted = commands.is_interrupted();
                    steps[0] = conversation.take_command(commands.current_line(), interrupted, &mut out)?;
                } else if !server.is_empty() {
                    let taken = replies.take(&server[..server.len().min(size)])?;
                    server = &server[taken.used..];
                    if taken.line_ended {
                        steps[1] = conversation.take_reply(replies.current_line(), &mut out)?;
                    }
                } else if conversation.has_loose_end() {
                    steps[1] = conversation.end_loosely(&mut out)?;
                } else if waiting || client.is_empty() {
                    return Ok(());
                }
                if steps.iter().any(|step| matches!(step, Step::Open(_))) {
                    conversation.announce_listener(ours, None, &mut out);
                }
            }
        };
        let _ = go();
        let has = |text: &[u8], what: &[u8]| text.windows(what.len()).any(|part| part == what);
        // A word that merely ends so is a command that no server knows.
        for line in out.server.split(|byte| *byte == b'\n') {
            let at = line.windows(14).position(|part| part == b"PORT 192,0,2,7");
            let before = at.map(|at| at.checked_sub(1).and_then(|at| line.get(at)).copied());
            prop_assert!(before.is_none_or(|before| before.is_some_and(|byte| byte.is_ascii_alphanumeric())), "{line:?}");
        }
        for line in out.client.split(|byte| *byte == b'\n') {
            if line.starts_with(b"227 ") && !has(&out.client, b"211-") {
                prop_assert!(has(line, b"198,51,100,1"));
            }
        }
    }
}
