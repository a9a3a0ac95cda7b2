//! Commands and replies, and what they do to data connections.
//!
//! Commands are passed on one by one: the next when the one before has its last reply, so that each
//! reply is known to be of one command, also of clients that send several at once. During a transfer
//! those pass that are meant for it: ABOR, STAT, NOOP and QUIT.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::address::{read_eprt, read_port, write_eprt, write_port};
use super::output::{Output, SYNCH, answer_command, pass_line, write_answer, write_line};
use super::pending::{Owner, Pending, is_success, is_unasked, names_address, read_address};
use super::step::{Mode, Opening, Refusal, Step, Transfer};
use super::{Command, Replies, Verb};

/// Lowest port of a data connection that is dialled: below are services of other protocols.
const LEAST_PORT: u16 = 1024;

/// Most commands with an address of somebody else, and most lines that are no command, in a session:
/// whoever sends more means no good.
const MOST_BOUNCES: u8 = 8;
const MOST_MALFORMED: u8 = 20;

/// Most lines in a row of a server that belong to no reply: it speaks something else.
const MOST_STRAYS: u8 = 100;

/// Handling of TLS (RFC 4217).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// There is no TLS.
    #[default]
    Refuse,
    /// TLS is between client and server: after that nothing is understood any more.
    Pass,
    /// TLS ends here.
    End,
}

/// Settings of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The client's address.
    pub client: IpAddr,
    /// True if the server is connected to over IPv6.
    pub server_is_v6: bool,
    /// Handling of TLS.
    pub auth: Auth,
    /// True if clients have to use TLS, for data, too.
    pub require_tls: bool,
}

/// A control connection between a client and a server.
#[derive(Debug)]
pub struct Conversation {
    settings: Settings,
    replies: Replies,
    owner: Owner,
    pending: Option<Pending>,
    /// True if the pending command has a preliminary reply.
    preliminary: bool,
    /// A command that was sent during a transfer.
    late: Option<Verb>,
    /// A second reply to ABOR may come.
    stray: bool,
    epsv_all: bool,
    secured: bool,
    has_buffer_size: bool,
    protects_data: bool,
    has_quit: bool,
    /// Port of the client, which it has named in a command that waits for our address.
    active: bool,
    /// Code of the reply that greeted the client.
    greeting: Option<u16>,
    /// Code of the reply to which the server's last line belongs.
    last_code: Option<u16>,
    /// Number of commands that named somebody else's address, and of lines that were no command.
    bounces: u8,
    malformed: u8,
    /// Lines in a row that belong to no reply.
    strays: u8,
}

impl Conversation {
    /// A conversation before the server's greeting.
    pub fn new(settings: Settings) -> Self {
        Conversation {
            settings,
            replies: Replies::default(),
            owner: Owner::Nobody,
            pending: Some(Pending::Greeting),
            preliminary: false,
            late: None,
            stray: false,
            epsv_all: false,
            secured: false,
            has_buffer_size: false,
            protects_data: false,
            has_quit: false,
            active: false,
            greeting: None,
            last_code: None,
            bounces: 0,
            malformed: 0,
            strays: 0,
        }
    }

    /// Returns true if nobody waits for anything: there is no command without its last reply.
    pub fn is_at_rest(&self) -> bool {
        self.pending.is_none() && self.late.is_none() && !self.replies.is_within() && !self.active
    }

    /// Code of the server's greeting, if that has come.
    pub fn greeting_code(&self) -> Option<u16> {
        self.greeting
    }

    /// Code of the reply to which the server's last line belongs.
    pub fn last_code(&self) -> Option<u16> {
        self.last_code
    }

    /// Returns true if the client has said that it leaves.
    pub fn has_quit(&self) -> bool {
        self.has_quit
    }

    /// Returns true if data connections with the client are protected by TLS.
    pub fn protects_data(&self) -> bool {
        self.protects_data
    }

    /// The handshake is over.
    pub fn mark_secured(&mut self) {
        self.secured = true;
    }

    /// Returns true if a line of the client may be taken now; otherwise the line has to wait for
    /// replies.
    pub fn may_take(&self, line: &[u8]) -> bool {
        if self.has_quit || self.active {
            return false;
        }
        match self.pending {
            // It is no command, and holds none up.
            _ if line.is_empty() => true,
            None => true,
            Some(_) if !self.preliminary || self.late.is_some() => false,
            Some(Pending::Greeting) => false,
            Some(_) => {
                let verb = Command::read(line).map(|command| command.verb);
                let during = [Verb::Abor, Verb::Stat, Verb::Noop, Verb::Quit];
                verb.is_some_and(|verb| during.contains(&verb))
            }
        }
    }

    /// Takes a line of the client, for which it [has to be time](Self::may_take). `interrupted` as
    /// [`Lines`](super::Lines) says it.
    ///
    /// # Errors
    ///
    /// The conversation is to be ended.
    pub fn take_command(
        &mut self,
        line: &[u8],
        interrupted: bool,
        out: &mut Output,
    ) -> Result<Step, Refusal> {
        let Some(command) = Command::read(line) else {
            return self.refuse_line(line, out);
        };
        let auth = self.settings.auth;
        let is_protected = auth == Auth::End;
        match command.verb {
            Verb::Port | Verb::Eprt => return self.port(&command, out),
            Verb::Pasv | Verb::Epsv => return Ok(self.take_passive(&command, out)),
            Verb::Long => {
                return answer_command(out, "502 Command not supported: use PASV or EPSV");
            }
            Verb::Auth if auth == Auth::Pass => self.send_command(Pending::Auth, line, out),
            Verb::Auth => return self.take_auth(&command, out),
            Verb::Pbsz | Verb::Prot | Verb::Ccc if auth == Auth::Pass => {
                self.send_command(Pending::Other, line, out);
            }
            Verb::Pbsz if is_protected => return self.buffer_size(&command, out),
            Verb::Prot if is_protected => return self.take_protect(&command, out),
            Verb::Ccc if is_protected => {
                return answer_command(out, "534 The control connection stays protected");
            }
            Verb::Pbsz | Verb::Prot | Verb::Ccc | Verb::Security => {
                return answer_command(out, "502 This kind of protection is not supported");
            }
            Verb::Login if self.settings.require_tls && !self.secured => {
                return answer_command(out, "530 First AUTH TLS: this service needs it");
            }
            Verb::Transfer if self.settings.require_tls && !self.protects_data => {
                return answer_command(out, "522 Data must be protected: first PBSZ 0 and PROT P");
            }
            Verb::Transfer => {
                self.stray = false;
                self.send_command(Pending::Transfer, line, out);
                return Ok(Step::Transfer(Transfer::Begun));
            }
            Verb::Rein if self.secured => {
                return answer_command(
                    out,
                    "502 REIN is not supported with TLS: open a new connection",
                );
            }
            Verb::Rein => self.send_command(Pending::Rein, line, out),
            Verb::Feat => self.send_command(Pending::Feat, line, out),
            Verb::Quit => {
                self.has_quit = true;
                self.send_or_later(Pending::Quit, &command, line, out);
            }
            Verb::Abor => {
                if interrupted {
                    out.urgent = Some(out.server.len() + SYNCH.len() - 1);
                    out.server.extend(SYNCH);
                }
                self.send_or_later(Pending::Other, &command, line, out);
            }
            Verb::Stat | Verb::Noop => self.send_or_later(Pending::Other, &command, line, out),
            Verb::Login | Verb::Other => self.send_command(Pending::Other, line, out),
        }
        Ok(Step::Nothing)
    }

    /// Answers a line that is no command. An empty one is passed over, as servers do.
    fn refuse_line(&mut self, line: &[u8], out: &mut Output) -> Result<Step, Refusal> {
        if line.is_empty() {
            return Ok(Step::Nothing);
        }
        self.malformed += 1;
        // A field of HTTP comes from a browser that was sent here, with commands behind it.
        let first = line.split(|byte| *byte == b' ').next();
        let is_field = first.is_some_and(|first| first.contains(&b':'));
        let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
        if is_field || !line.iter().all(is_text) || self.malformed > MOST_MALFORMED {
            return Err(Refusal::Malformed);
        }
        write_answer(out, "500 That is no command");
        Ok(Step::Refused(Refusal::Malformed))
    }

    /// Passes on a command that may be sent during another one.
    fn send_or_later(
        &mut self,
        kind: Pending,
        command: &Command<'_>,
        line: &[u8],
        out: &mut Output,
    ) {
        match self.pending {
            Some(_) => {
                self.late = Some(command.verb);
                write_line(line, &mut out.server);
            }
            None => self.send_command(kind, line, out),
        }
    }

    fn send_command(&mut self, kind: Pending, line: &[u8], out: &mut Output) {
        self.pending = Some(kind);
        self.preliminary = false;
        write_line(line, &mut out.server);
    }

    fn take_passive(&mut self, command: &Command<'_>, out: &mut Output) -> Step {
        let settings = self.settings;
        let asked = command.verb;
        if asked == Verb::Pasv {
            let refused = if self.epsv_all {
                Some("501 PASV is not allowed after EPSV ALL")
            } else if settings.client.is_ipv6() {
                Some("522 No IPv6 address fits in the answer: use EPSV")
            } else {
                None
            };
            if let Some(refused) = refused {
                return write_answer(out, refused);
            }
        } else {
            let (own, other) = match settings.client {
                IpAddr::V4(_) => (b"1", "522 Network protocol not supported, use (1)"),
                IpAddr::V6(_) => (b"2", "522 Network protocol not supported, use (2)"),
            };
            match command.argument {
                b"" => {}
                all if all.eq_ignore_ascii_case(b"ALL") => {
                    self.epsv_all = true;
                    return write_answer(out, "200 From now on EPSV only");
                }
                family if family == own => {}
                _ => return write_answer(out, other),
            }
        }
        let sent = match asked {
            // The address of the other family, which the answer could not name, or the server not know.
            Verb::Pasv if settings.server_is_v6 => Verb::Epsv,
            Verb::Epsv if settings.client.is_ipv6() && !settings.server_is_v6 => Verb::Pasv,
            asked => asked,
        };
        let name: &[u8] = if sent == Verb::Pasv { b"PASV" } else { b"EPSV" };
        let port = None;
        self.send_command(Pending::Passive { sent, asked, port }, name, out);
        Step::Nothing
    }

    fn port(&mut self, command: &Command<'_>, out: &mut Output) -> Result<Step, Refusal> {
        if self.epsv_all {
            return answer_command(out, "501 PORT and EPRT are not allowed after EPSV ALL");
        }
        let argument = command.argument.trim_ascii();
        let address = if command.verb == Verb::Port {
            read_port(argument).map(|(ip, port)| (IpAddr::V4(ip), port))
        } else {
            match read_eprt(argument) {
                Some(None) => {
                    return answer_command(out, "522 Network protocol not supported, use (1,2)");
                }
                address => address.flatten(),
            }
        };
        let Some((ip, port)) = address else {
            return answer_command(out, "501 Not an address");
        };
        // No address at all is what some clients write for their own.
        let is_own = ip.to_canonical() == self.settings.client || ip.is_unspecified();
        if !is_own || port < LEAST_PORT {
            self.bounces += 1;
            if self.bounces > MOST_BOUNCES {
                return Err(Refusal::Bounce);
            }
            // RFC 2577, section 3. Clients behind a router name an address that only they know, and
            // go on with PASV.
            write_answer(
                out,
                "504 Only your own address and ports from 1024 on: use PASV or EPSV",
            );
            return Ok(Step::Refused(Refusal::Bounce));
        }
        self.active = true;
        let mode = Mode::Active;
        Ok(Step::Open(Opening { mode, port }))
    }

    /// We listen: at `address`. Says so to whom it concerns. The answer to PASV names `announced`
    /// instead, if it is given.
    pub fn announce_listener(
        &mut self,
        address: SocketAddr,
        announced: Option<Ipv4Addr>,
        out: &mut Output,
    ) {
        let mut text = String::new();
        if std::mem::take(&mut self.active) {
            match address.ip().to_canonical() {
                IpAddr::V4(ip) => {
                    text.push_str("PORT ");
                    write_port(ip, address.port(), &mut text);
                }
                IpAddr::V6(_) => {
                    text.push_str("EPRT ");
                    write_eprt(address, &mut text);
                }
            }
            self.send_command(Pending::Active, text.as_bytes(), out);
            return;
        }
        let Some(Pending::Listening { asked }) = self.pending else {
            return;
        };
        self.pending = None;
        match (asked, address.ip().to_canonical()) {
            (Verb::Pasv, IpAddr::V4(ip)) => {
                text.push_str("227 Entering Passive Mode (");
                write_port(announced.unwrap_or(ip), address.port(), &mut text);
                text.push_str(").");
            }
            _ => {
                let port = address.port();
                text = format!("229 Entering Extended Passive Mode (|||{port}|)");
            }
        }
        write_answer(out, &text);
    }

    fn take_auth(&mut self, command: &Command<'_>, out: &mut Output) -> Result<Step, Refusal> {
        let is = |name: &str| command.argument.eq_ignore_ascii_case(name.as_bytes());
        match self.settings.auth {
            Auth::End if self.secured => answer_command(out, "503 TLS is in use"),
            Auth::End if is("TLS") || is("TLS-C") => {
                write_answer(out, "234 TLS begins");
                Ok(Step::Secure)
            }
            Auth::End => answer_command(out, "504 Only TLS"),
            _ => answer_command(out, "502 There is no TLS here"),
        }
    }

    fn buffer_size(&mut self, command: &Command<'_>, out: &mut Output) -> Result<Step, Refusal> {
        if !self.secured {
            return answer_command(out, "503 First AUTH TLS");
        }
        if command.argument.is_empty() || !command.argument.iter().all(u8::is_ascii_digit) {
            return answer_command(out, "501 Not a size");
        }
        self.has_buffer_size = true;
        answer_command(out, "200 PBSZ=0")
    }

    fn take_protect(&mut self, command: &Command<'_>, out: &mut Output) -> Result<Step, Refusal> {
        if !self.has_buffer_size {
            return answer_command(out, "503 First AUTH TLS and PBSZ 0");
        }
        match command.argument {
            b"P" | b"p" => {
                self.protects_data = true;
                answer_command(out, "200 Data connections are protected")
            }
            b"C" | b"c" if self.settings.require_tls => {
                answer_command(out, "534 Data must be protected")
            }
            b"C" | b"c" => {
                self.protects_data = false;
                answer_command(out, "200 Data connections are not protected")
            }
            b"S" | b"s" | b"E" | b"e" => answer_command(out, "536 Only P and C"),
            _ => answer_command(out, "504 Only P and C"),
        }
    }

    /// Takes a line of the server. One that belongs to no reply is not passed on.
    ///
    /// # Errors
    ///
    /// The conversation is to be ended.
    pub fn take_reply(&mut self, line: &[u8], out: &mut Output) -> Result<Step, Refusal> {
        let Some(part) = self.replies.take(line) else {
            self.strays += 1;
            return match self.strays > MOST_STRAYS {
                true => Err(Refusal::Reply),
                false => Ok(Step::Nothing),
            };
        };
        self.strays = 0;
        let code = part.code;
        self.last_code = Some(code);
        if part.first {
            self.owner = self.owner_of(code);
        }
        let pending = self.pending_reply();
        if is_unasked(pending, code) {
            return Err(Refusal::Reply);
        }
        if let Some(Pending::Passive { sent, asked, port }) = pending {
            if names_address(code, line) {
                let port = read_address(sent, line).or(port);
                self.pending = Some(Pending::Passive { sent, asked, port });
            } else {
                pass_line(line, out);
            }
        } else if pending == Some(Pending::Feat) && self.settings.auth != Auth::Pass {
            self.pass_feature(line, code, part.first, part.last, out);
        } else {
            pass_line(line, out);
        }
        match part.last {
            true => Ok(self.end_reply(code, code, out)),
            false => Ok(Step::Nothing),
        }
    }

    /// Returns true if the server's last line [ends its reply](Replies::has_loose_end) only for some
    /// clients: if nothing more comes for a while, call [`Conversation::end_loosely`].
    pub fn has_loose_end(&self) -> bool {
        self.replies.has_loose_end()
    }

    /// Takes the server's last line as the end of its reply. Nobody would send anything again
    /// otherwise: the client has its reply, and the server no next command.
    ///
    /// # Errors
    ///
    /// The conversation is to be ended.
    pub fn end_loosely(&mut self, out: &mut Output) -> Result<Step, Refusal> {
        let Some((begun, code)) = self.replies.end_loosely() else {
            return Ok(Step::Nothing);
        };
        self.last_code = Some(code);
        match is_unasked(self.pending_reply(), code) {
            true => Err(Refusal::Reply),
            false => Ok(self.end_reply(begun, code, out)),
        }
    }

    /// The pending command, if the reply that has begun is its own.
    fn pending_reply(&self) -> Option<Pending> {
        self.pending.filter(|_| self.owner == Owner::Pending)
    }

    /// A reply is whole that began with the code `begun`, and ended with `code`.
    fn end_reply(&mut self, begun: u16, code: u16, out: &mut Output) -> Step {
        let Some(Pending::Passive { sent, asked, port }) = self.pending_reply() else {
            return self.finish_reply(code);
        };
        let is_yes = matches!((sent, code), (Verb::Pasv, 227) | (Verb::Epsv, 229));
        if let Some(port) = port.filter(|port| is_yes && *port >= LEAST_PORT) {
            self.pending = Some(Pending::Listening { asked });
            let mode = Mode::Passive;
            return Step::Open(Opening { mode, port });
        }
        // What begins so was not passed on, and neither was a last line with an address.
        if !(is_success(begun) || matches!(code, 227..=229)) {
            return self.finish_reply(code);
        }
        // The client has other ways to ask.
        self.pending = None;
        self.preliminary = false;
        let text = match asked {
            Verb::Epsv => "502 The server names no port: use PASV",
            _ => "502 The server names no port: use EPSV or PORT",
        };
        write_answer(out, text);
        Step::Refused(Refusal::Reply)
    }

    /// Returns the command to which a reply belongs that begins with `code`.
    fn owner_of(&self, code: u16) -> Owner {
        let is_of_abor = matches!(code, 225 | 226);
        match (self.pending, self.late) {
            (None, None) => Owner::Nobody,
            (None, Some(_)) => Owner::Late,
            (Some(pending), _) if self.stray && is_of_abor && pending != Pending::Transfer => {
                Owner::Nobody
            }
            (Some(_), Some(Verb::Stat)) if matches!(code, 211..=213) => Owner::Late,
            (Some(_), Some(Verb::Noop)) if code == 200 => Owner::Late,
            (Some(_), Some(Verb::Quit)) if code == 221 => Owner::Late,
            (Some(_), _) => Owner::Pending,
        }
    }

    /// A reply is whole.
    fn finish_reply(&mut self, code: u16) -> Step {
        // One such reply is all there is for a command (RFC 959, section 4.2). Pure-FTPd ends transfers
        // that the client has broken off with another one, and says nothing more.
        let is_second = self.preliminary && matches!(code, 125 | 150);
        let is_preliminary = code < 200 && !(is_second && self.owner == Owner::Pending);
        match self.owner {
            Owner::Nobody => self.stray &= !matches!(code, 225 | 226),
            Owner::Late if is_preliminary => {}
            Owner::Late => self.late = None,
            Owner::Pending if is_preliminary => self.preliminary = true,
            Owner::Pending => {
                let done = self.pending.take();
                self.preliminary = false;
                if done == Some(Pending::Greeting) {
                    self.greeting = Some(code);
                }
                // Some servers answer both with one reply.
                if self.late == Some(Verb::Abor) && code < 300 {
                    self.late = None;
                    self.stray = true;
                }
                return match done {
                    Some(Pending::Auth) if code == 234 => Step::Tunnel,
                    Some(Pending::Transfer) => Step::Transfer(Transfer::Ended(code)),
                    Some(Pending::Active) if code >= 300 => Step::Close,
                    Some(Pending::Rein) if code < 300 => Step::Close,
                    _ => Step::Nothing,
                };
            }
        }
        Step::Nothing
    }

    /// A line of what the server knows: of TLS it is we who know.
    fn pass_feature(&mut self, line: &[u8], code: u16, first: bool, last: bool, out: &mut Output) {
        const OURS: &[u8] = b" AUTH TLS\r\n PBSZ\r\n PROT\r\n";
        let ends_here = self.settings.auth == Auth::End;
        if !first && !last {
            let name = line
                .strip_prefix(b"211-")
                .unwrap_or(line)
                .trim_ascii_start();
            let end = name.iter().position(|byte| !byte.is_ascii_alphanumeric());
            let name = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
            let of_tls: [&[u8]; 4] = [b"AUTH", b"PBSZ", b"PROT", b"CCC"];
            if of_tls
                .iter()
                .any(|of_tls| of_tls.eq_ignore_ascii_case(name))
            {
                return;
            }
        }
        if last && ends_here {
            if first {
                // It knows nothing more, or not even the command.
                out.client.extend_from_slice(b"211-Features:\r\n");
                out.client.extend_from_slice(OURS);
                out.client.extend_from_slice(b"211 End\r\n");
                return;
            }
            if code == 211 {
                out.client.extend_from_slice(OURS);
            }
        }
        pass_line(line, out);
    }
}
