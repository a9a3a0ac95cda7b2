//! Commands of clients.

/// A command, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Kind of the command.
    pub verb: Verb,
    /// Name of the command as the client has written it.
    pub name: &'a [u8],
    /// Argument of the command, behind the space.
    pub argument: &'a [u8],
}

/// Commands that mean something to who stands between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// PORT: the client listens (RFC 959).
    Port,
    /// EPRT: the same for any family (RFC 2428).
    Eprt,
    /// PASV: the server listens.
    Pasv,
    /// EPSV: the same for any family.
    Epsv,
    /// LPRT and LPSV (RFC 1639), which nobody uses.
    Long,
    /// AUTH: TLS from now on (RFC 4217).
    Auth,
    /// PBSZ: size of protected buffers (RFC 2228).
    Pbsz,
    /// PROT: whether data connections are protected.
    Prot,
    /// CCC: the control connection is not protected any more.
    Ccc,
    /// Other commands of RFC 2228, which are for Kerberos.
    Security,
    /// REIN: as if just connected.
    Rein,
    /// QUIT: the client leaves.
    Quit,
    /// ABOR: ends the transfer.
    Abor,
    /// STAT, which may be sent during a transfer.
    Stat,
    /// NOOP, the same.
    Noop,
    /// FEAT: what the server knows (RFC 2389).
    Feat,
    /// USER, PASS and ACCT.
    Login,
    /// A command that has a data connection.
    Transfer,
    /// Anything else.
    Other,
}

/// Longest name of a command; those of RFC 2228 and later have 4 letters at most.
const MAX_NAME: usize = 16;

impl<'a> Command<'a> {
    /// Reads a line; `None` if it does not begin with the name of a command.
    pub fn read(line: &'a [u8]) -> Option<Self> {
        let end = line.iter().position(|byte| *byte == b' ');
        let (name, argument) = match end {
            Some(end) => (line.get(..end)?, line.get(end + 1..)?),
            None => (line, &[][..]),
        };
        let is_name =
            (1..=MAX_NAME).contains(&name.len()) && name.iter().all(u8::is_ascii_alphanumeric);
        is_name.then(|| Command {
            verb: Verb::from_name(name),
            name,
            argument,
        })
    }
}

impl Verb {
    fn from_name(name: &[u8]) -> Self {
        const KNOWN: [(&[u8], Verb); 35] = [
            (b"PORT", Verb::Port),
            (b"EPRT", Verb::Eprt),
            (b"PASV", Verb::Pasv),
            (b"EPSV", Verb::Epsv),
            (b"LPRT", Verb::Long),
            (b"LPSV", Verb::Long),
            // Like PASV, with an address of the server's choice in the reply to a transfer.
            (b"SPSV", Verb::Long),
            (b"CPSV", Verb::Long),
            (b"AUTH", Verb::Auth),
            (b"PBSZ", Verb::Pbsz),
            (b"PROT", Verb::Prot),
            (b"CCC", Verb::Ccc),
            (b"ADAT", Verb::Security),
            (b"MIC", Verb::Security),
            (b"CONF", Verb::Security),
            (b"ENC", Verb::Security),
            (b"REIN", Verb::Rein),
            (b"QUIT", Verb::Quit),
            (b"BYE", Verb::Quit),
            (b"ABOR", Verb::Abor),
            (b"STAT", Verb::Stat),
            (b"NOOP", Verb::Noop),
            (b"FEAT", Verb::Feat),
            (b"USER", Verb::Login),
            (b"PASS", Verb::Login),
            (b"ACCT", Verb::Login),
            (b"RETR", Verb::Transfer),
            (b"STOR", Verb::Transfer),
            (b"STOU", Verb::Transfer),
            (b"APPE", Verb::Transfer),
            (b"LIST", Verb::Transfer),
            (b"NLST", Verb::Transfer),
            (b"MLSD", Verb::Transfer),
            (b"XLST", Verb::Transfer),
            (b"COMB", Verb::Transfer),
        ];
        let mut known = KNOWN.iter();
        let known = known.find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map_or(Verb::Other, |(_, verb)| *verb)
    }
}
