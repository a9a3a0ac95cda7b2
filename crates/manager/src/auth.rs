//! Authentication of requests: users and their passwords, from files as `htpasswd` writes them, and groups
//! that are asked.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, STANDARD};
use base64::{Engine, alphabet};
use evenkeel_config::routing::template::Template;
use evenkeel_core::key;
use sha_crypt::{Sha256Params, Sha512Params, sha256_crypt_b64, sha512_crypt_b64};

use crate::config::{self, FileName, Problem, Rule, kept, one_line};

/// Users by the paths of their files.
pub type UserFiles = HashMap<PathBuf, Arc<Users>>;

/// Largest file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Longest name of a user, in bytes.
pub const MAX_USER: usize = 128;

/// Longest password, in bytes: what is longer is wrong. SHA-crypt takes a time that grows with it.
pub const MAX_PASSWORD: usize = 256;

/// Most bytes of credentials in Base64.
const MAX_CREDENTIALS: usize = (MAX_USER + 1 + MAX_PASSWORD).div_ceil(3) * 4;

/// Highest cost of bcrypt, and most rounds of SHA-crypt: more takes seconds for each password.
const MAX_COST: u32 = 15;
const MAX_ROUNDS: u32 = 500_000;

/// Most that Argon2 may take for each password: memory in KiB, rounds, and lanes.
const MAX_ARGON2: (u32, u32, u32) = (64 * 1024, 10, 4);

/// Most complaints about one file.
const MAX_PROBLEMS: usize = 20;

/// Reads the users of `rules`. If a file has the same contents as before, its users in `known` stay.
pub(crate) fn load_users<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    known: &UserFiles,
    errors: &mut Vec<Problem>,
) -> UserFiles {
    let mut files = UserFiles::new();
    for auth in rules.into_iter().flat_map(Rule::auths) {
        let Some(file) = &auth.users_file else {
            continue;
        };
        if files.contains_key(&file.path) {
            continue;
        }
        match read(file) {
            Ok(users) => {
                let known = known
                    .get(&file.path)
                    .filter(|known| known.text == users.text);
                let users = known.cloned().unwrap_or_else(|| Arc::new(users));
                files.insert(file.path.clone(), users);
            }
            Err(problems) => errors.extend(problems),
        }
    }
    files
}

fn read(file: &FileName) -> Result<Users, Vec<Problem>> {
    let problem = |what: String| {
        let path = file.path.display();
        file.place.problem(format!("{path}{what}"))
    };
    let read = |path: &Path| {
        config::rights_of_users(path)?;
        config::read_file(path, MAX_FILE).map(String::into_bytes)
    };
    let make = |source: &kept::Source| {
        let text = source.read(&file.path, read);
        let text = text.map_err(|error| vec![problem(format!(": {error}"))])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Users::parse(text).map_err(|errors| {
            let problems = errors.into_iter().take(MAX_PROBLEMS);
            problems
                .map(|(line, error)| problem(format!(":{line}: {error}")))
                .collect::<Vec<_>>()
        })
    };
    let users = kept::load_or_keep(make, |problems| one_line(problems))?;
    if let Ok(Some(complaint)) = config::rights_of_users(&file.path) {
        kept::complain(&file.path, complaint);
    }
    Ok(users)
}

/// Error in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line has no colon.
    #[error("the line is not USER:HASH")]
    Form,
    /// The name is too long, or has odd characters.
    #[error("the name of the user is not 1 to {MAX_USER} bytes without control characters")]
    User,
    /// The name comes twice.
    #[error("an earlier line has the same user")]
    Twice,
    /// A hash of old.
    #[error(
        "the hash is MD5 ($apr1$), which is cracked too fast: make a new hash with htpasswd -B"
    )]
    Md5,
    /// Something else.
    #[error(
        "the hash is not of Argon2 ($argon2id$), bcrypt ($2y$) or SHA-crypt ($5$, $6$): make one with htpasswd -B"
    )]
    Hash,
    /// A check would take too long.
    #[error(
        "the hash takes too much time or memory at each request: bcrypt may have a cost of {MAX_COST}, SHA-crypt {MAX_ROUNDS} rounds, Argon2 {} KiB, {} rounds and {} lanes",
        MAX_ARGON2.0,
        MAX_ARGON2.1,
        MAX_ARGON2.2
    )]
    Cost,
    /// An empty file.
    #[error("the file has no user")]
    Nobody,
}

/// A hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash {
    kind: Kind,
    salt: Box<[u8]>,
    /// Hash as it stands in the file, without the prefix before it.
    hash: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Hash of bcrypt, with its cost.
    Bcrypt(u32),
    /// Hash of SHA-256, with its rounds.
    Sha256(u32),
    Sha512(u32),
    /// Hash of Argon2: all parameters are in the hash.
    Argon2,
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

/// Most bytes of a password that bcrypt uses, with the NUL at the end.
const BCRYPT_MOST: usize = 72;

/// Base64 as bcrypt writes it.
const BCRYPT_64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::BCRYPT,
    // The last bits of a salt mean nothing, and there are programs that set them.
    NO_PAD.with_decode_allow_trailing_bits(true),
);

impl Hash {
    /// Argon2id of a password with a salt of 16 random bytes, at what OWASP recommends: 19 MiB and two
    /// rounds (RFC 9106; Password Storage Cheat Sheet). `None` if the password is longer than [`MAX_PASSWORD`].
    pub fn text_of(password: &str, salt: &[u8; 16]) -> Option<String> {
        if password.len() > MAX_PASSWORD {
            return None;
        }
        let salt = SaltString::encode_b64(salt).ok()?;
        let hash = Argon2::default().hash_password(password.as_bytes(), &salt);
        hash.ok().map(|hash| hash.to_string())
    }

    /// Parses a hash as it stands in a file.
    ///
    /// # Errors
    ///
    /// The text is no hash, or the check of a password would take too long.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        if text.starts_with("$argon2") {
            return Self::argon2(text);
        }
        if text.starts_with("$apr1$") || text.starts_with("$1$") {
            return Err(LineError::Md5);
        }
        // What stands before the first `$` locks an account (`!`, `*`), wherever such lines come from.
        let mut parts = text.strip_prefix('$').ok_or(LineError::Hash)?.split('$');
        let kind = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        match (kind, rest.as_slice()) {
            ("2a" | "2b" | "2y", [cost, both]) => {
                let cost = within(cost, 4, MAX_COST)?;
                let (salt, hash) = both.split_at_checked(22).ok_or(LineError::Hash)?;
                let salt = BCRYPT_64.decode(salt).map_err(|_| LineError::Hash)?;
                Hash::new(Kind::Bcrypt(cost), salt, hash)
            }
            ("5" | "6", [rounds @ .., salt, hash]) => {
                let rounds = match rounds {
                    [] => 5_000,
                    [rounds] => {
                        let rounds = rounds.strip_prefix("rounds=").ok_or(LineError::Hash)?;
                        within(rounds, 1_000, MAX_ROUNDS)?
                    }
                    _ => return Err(LineError::Hash),
                };
                if salt.len() > 16 {
                    return Err(LineError::Hash);
                }
                let kind = match kind {
                    "5" => Kind::Sha256(rounds),
                    _ => Kind::Sha512(rounds),
                };
                Hash::new(kind, salt.as_bytes().to_vec(), hash)
            }
            _ => Err(LineError::Hash),
        }
    }

    fn new(kind: Kind, salt: Vec<u8>, hash: &str) -> Result<Self, LineError> {
        let length = match kind {
            Kind::Bcrypt(_) => 31,
            Kind::Sha256(_) => 43,
            Kind::Sha512(_) => 86,
            Kind::Argon2 => return Err(LineError::Hash),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"./".contains(&byte);
        let is_one = hash.len() == length && hash.bytes().all(fits);
        let one = || Hash {
            kind,
            salt: salt.into(),
            hash: hash.into(),
        };
        is_one.then(one).ok_or(LineError::Hash)
    }

    fn argon2(text: &str) -> Result<Self, LineError> {
        let hash = PasswordHash::new(text).map_err(|_| LineError::Hash)?;
        let known = Algorithm::try_from(hash.algorithm).is_ok();
        let version = hash.version.map(Version::try_from);
        if !known || !matches!(version, None | Some(Ok(_))) {
            return Err(LineError::Hash);
        }
        let cost = Params::try_from(&hash).map_err(|_| LineError::Hash)?;
        let (memory, rounds, lanes) = MAX_ARGON2;
        if cost.m_cost() > memory || cost.t_cost() > rounds || cost.p_cost() > lanes {
            return Err(LineError::Cost);
        }
        match (hash.salt, hash.hash) {
            (Some(_), Some(_)) => Ok(Hash {
                kind: Kind::Argon2,
                salt: Box::default(),
                hash: text.into(),
            }),
            _ => Err(LineError::Hash),
        }
    }

    /// True if the hash is that of `password`. The check takes up to a second of a CPU, and no time for a
    /// password that is longer than any can be.
    pub fn is_of(&self, password: &str) -> bool {
        if password.len() > MAX_PASSWORD {
            return false;
        }
        let hash = match self.kind {
            Kind::Argon2 => {
                let known = PasswordHash::new(&self.hash);
                let password = password.as_bytes();
                return known
                    .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok());
            }
            Kind::Bcrypt(cost) => {
                let Ok(salt) = <[u8; 16]>::try_from(&*self.salt) else {
                    return false;
                };
                let mut password = password.as_bytes().to_vec();
                password.push(0);
                password.truncate(BCRYPT_MOST);
                let hash = bcrypt::bcrypt(cost, salt, &password);
                // The last byte is not written.
                hash.get(..23).map(|hash| BCRYPT_64.encode(hash))
            }
            Kind::Sha256(rounds) => {
                let parameters = Sha256Params::new(rounds as usize).ok();
                let password = password.as_bytes();
                parameters.and_then(|of| sha256_crypt_b64(password, &self.salt, &of).ok())
            }
            Kind::Sha512(rounds) => {
                let parameters = Sha512Params::new(rounds as usize).ok();
                let password = password.as_bytes();
                parameters.and_then(|of| sha512_crypt_b64(password, &self.salt, &of).ok())
            }
        };
        hash.is_some_and(|hash| {
            verify_slices_are_equal(hash.as_bytes(), self.hash.as_bytes()).is_ok()
        })
    }
}

/// A number from `least` to `most`, which is what a check of a password may cost.
fn within(text: &str, least: u32, most: u32) -> Result<u32, LineError> {
    let number: u32 = text.parse().map_err(|_| LineError::Hash)?;
    match number {
        _ if number < least => Err(LineError::Hash),
        _ if number > most => Err(LineError::Cost),
        _ => Ok(number),
    }
}

/// The users of a file.
#[derive(Default)]
pub struct Users {
    /// The file as it was read.
    text: String,
    /// Number that no other users of this process have.
    id: u64,
    by_name: HashMap<Arc<str>, Hash>,
    hashes: Vec<Hash>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

impl Users {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// Lines that cannot be read, with their numbers from 1.
    pub fn parse(text: String) -> Result<Self, Vec<(usize, LineError)>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (mut by_name, mut hashes, mut errors) = (HashMap::new(), Vec::new(), Vec::new());
        for (number, line) in lines(&text) {
            match parse_line(line) {
                Ok((user, hash)) => {
                    hashes.push(hash.clone());
                    if by_name.insert(Arc::from(user), hash).is_some() {
                        errors.push((number, LineError::Twice));
                    }
                }
                Err(error) => errors.push((number, error)),
            }
        }
        if hashes.is_empty() && errors.is_empty() {
            errors.push((1, LineError::Nobody));
        }
        match errors.is_empty() {
            true => Ok(Users {
                text,
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                by_name,
                hashes,
            }),
            false => Err(errors),
        }
    }

    /// A number that no users have that were read from a file with something else in it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<Arc<str>> {
        self.by_name
            .get_key_value(name)
            .map(|(name, _)| Arc::clone(name))
    }

    /// True if this is the user's password. The check takes up to a second of a CPU, and as long for a user
    /// who is not there.
    pub fn check_password(&self, name: &str, password: &str) -> bool {
        if let Some(hash) = self.by_name.get(name) {
            return hash.is_of(password);
        }
        let count = self.hashes.len().max(1) as u64;
        let drawn = usize::try_from(key::hash(name.as_bytes()) % count).unwrap_or_default();
        if let Some(hash) = self.hashes.get(drawn) {
            // The same work; what comes of it does not matter.
            std::hint::black_box(hash.is_of(password));
        }
        false
    }
}

/// The lines of a file of users that say something, with their numbers: not those that are empty or begin with `#`.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim_end));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// True if `name` is allowed as the name of a user.
pub fn is_user(name: &str) -> bool {
    (1..=MAX_USER).contains(&name.len()) && !name.contains(char::is_control)
}

/// User and password in a value of `Authorization` (RFC 7617), if it has both. Control characters, and names and
/// passwords that are longer than any can be, are refused.
pub fn basic_credentials(value: &[u8]) -> Option<(Box<str>, Box<str>)> {
    let (scheme, rest) = value.split_at_checked(6)?;
    let text = rest.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"basic ") || text.len() > MAX_CREDENTIALS {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    let fits = user.len() <= MAX_USER && password.len() <= MAX_PASSWORD;
    (fits && !text.contains(char::is_control)).then(|| (user.into(), password.into()))
}

fn parse_line(line: &str) -> Result<(&str, Hash), LineError> {
    let (user, hash) = line.split_once(':').ok_or(LineError::Form)?;
    if !is_user(user) {
        return Err(LineError::User);
    }
    Ok((user, Hash::parse(hash)?))
}

/// Authentication of a route's requests.
#[derive(Debug)]
pub struct Auth {
    /// Source that decides whose requests pass.
    pub by: By,
    /// The field that tells members the user.
    pub user_field: Option<Box<str>>,
    /// True if members do not get `Authorization`.
    pub remove_authorization: bool,
}

/// Source that decides whose requests pass.
#[derive(Debug)]
pub enum By {
    /// A file.
    Users {
        /// The users.
        users: Arc<Users>,
        /// Challenge to clients that are none of the users: a value of `WWW-Authenticate`.
        challenge: Box<str>,
    },
    /// A group that is asked.
    Group(Asked),
}

/// A group that is asked whether requests may pass.
#[derive(Debug)]
pub struct Asked {
    /// Place of the group.
    pub target: u32,
    /// Path of the question, perhaps with a query.
    pub path: Box<str>,
    /// The fields of its response that members get.
    pub copied: Box<[Box<str>]>,
    /// Address to which clients are redirected if its response has status 401.
    pub login_page: Option<Template>,
    /// Time limit of the question, with all members that are asked.
    pub timeout: Duration,
}

impl Auth {
    pub(crate) fn new(
        config: &config::Auth,
        places: &HashMap<&str, u32>,
        files: &UserFiles,
    ) -> Self {
        let by = match config.asked_group() {
            Some(group) => By::Group(Asked {
                // A group that is not there has no place: nobody answers.
                target: places.get(group).copied().unwrap_or(u32::MAX),
                path: config.path.as_str().into(),
                copied: config.copied().map(Into::into).collect(),
                login_page: { config.login_page.as_deref() }
                    .and_then(|page| Template::parse(page).ok()),
                timeout: config.timeout,
            }),
            None => {
                // Where they were not read nobody is one.
                let file = config.users_file.as_ref();
                let users = file.and_then(|file| files.get(&file.path));
                let realm = &config.realm;
                By::Users {
                    users: users.cloned().unwrap_or_default(),
                    challenge: format!("Basic realm=\"{realm}\", charset=\"UTF-8\"").into(),
                }
            }
        };
        Auth {
            by,
            user_field: config.user_field.as_deref().map(Into::into),
            remove_authorization: config.removes_authorization(),
        }
    }

    /// The group that is asked.
    pub fn asked_group(&self) -> Option<&Asked> {
        match &self.by {
            By::Users { .. } => None,
            By::Group(asked) => Some(asked),
        }
    }

    /// The users of a file.
    pub fn users(&self) -> Option<&Arc<Users>> {
        match &self.by {
            By::Users { users, .. } => Some(users),
            By::Group(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password `secret`, as `htpasswd -nbB -C 4` and `openssl passwd` hash it.
    const ANNA: &str = "anna:$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy";
    const BERT: &str = "bert:$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.";
    const CARL: &str = "carl:$6$0123456789abcdef$8CGkKDSyVpVlVNcs5PssRw/Tb8EgfecuA6D/zsRQFumJaU.s8KgTWWc2HfgkB7h2n1qIKiJFeSyUFrwvhILXy.";

    fn users(lines: &[&str]) -> Result<Users, Vec<(usize, LineError)>> {
        Users::parse(lines.join("\n"))
    }

    #[test]
    fn passwords_are_compared_with_each_kind_of_hash() {
        let users = users(&["# all", "", ANNA, BERT, CARL]).unwrap();
        for name in ["anna", "bert", "carl"] {
            assert_eq!(users.user(name).as_deref(), Some(name));
            assert!(users.check_password(name, "secret"), "{name}");
            for wrong in ["", "Secret", "secret ", "anna"] {
                assert!(!users.check_password(name, wrong), "{name} {wrong}");
            }
        }
        // Nobody is a user because of somebody else's password.
        for name in ["dora", "", "Anna"] {
            assert_eq!(users.user(name), None);
            assert!(!users.check_password(name, "secret"));
        }
        assert!(!Users::default().check_password("anna", "secret"));
    }

    #[test]
    fn n7_what_is_longer_than_a_password_is_not_compared() {
        // Even where it would be right.
        let hash = "$6$0123456789abcdef$udlCgNgpzKJiaDm4DlXLiq.ncZgZ2T9JmlB7zdUCB3e32u5TI6GS1s./RjnGeMhzeEkogk.257nbU3VnNzlGh.";
        let hash = Hash::parse(hash).unwrap();
        assert!(!hash.is_of(&"x".repeat(300)));
    }

    #[test]
    fn argon2_has_bounds() {
        let text = Hash::text_of("secret", &[7; 16]).unwrap();
        assert!(
            text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{text}"
        );
        let all = users(&[&format!("anna:{text}")]).unwrap();
        assert!(all.check_password("anna", "secret"));
        assert!(!all.check_password("anna", "Secret"));
        assert_ne!(Hash::text_of("secret", &[8; 16]).unwrap(), text);
        assert_eq!(Hash::text_of(&"x".repeat(257), &[7; 16]), None);
        for (from, to, error) in [
            ("m=19456", "m=999999", LineError::Cost),
            ("t=2", "t=11", LineError::Cost),
            ("p=1", "p=5", LineError::Cost),
            ("m=19456", "m=0", LineError::Hash),
            ("argon2id", "argon2x", LineError::Hash),
            ("v=19", "v=18", LineError::Hash),
        ] {
            let line = format!("anna:{}", text.replace(from, to));
            assert_eq!(users(&[&line]).unwrap_err(), [(1, error)], "{line}");
        }
        let (without_hash, _) = text.rsplit_once('$').unwrap();
        assert!(Hash::parse(without_hash).is_err());
        assert!(Hash::parse("$argon2").is_err());
    }

    #[test]
    fn lines_that_say_nobody_or_too_little_are_refused() {
        let bcrypt = ANNA.split_once(':').unwrap().1;
        let sha = CARL.split_once(':').unwrap().1;
        for (line, error) in [
            ("anna".to_owned(), LineError::Form),
            (format!(":{bcrypt}"), LineError::User),
            (format!("{}:{bcrypt}", "a".repeat(129)), LineError::User),
            (format!("a\u{7}:{bcrypt}"), LineError::User),
            ("anna:secret".into(), LineError::Hash),
            ("anna:".into(), LineError::Hash),
            ("anna:$2y$04$ä".into(), LineError::Hash),
            (
                "anna:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=".into(),
                LineError::Hash,
            ),
            ("anna:$apr1$x$LmnQpRfUsvZwbM2N5HgQb.".into(), LineError::Md5),
            (
                format!("anna:{}", &bcrypt[..bcrypt.len() - 1]),
                LineError::Hash,
            ),
            (format!("anna:{bcrypt}:x"), LineError::Hash),
            // Locked, as `usermod -L` and `passwd -l` write it.
            (format!("anna:!{sha}"), LineError::Hash),
            (format!("anna:!!{bcrypt}"), LineError::Hash),
            (format!("anna:*{sha}"), LineError::Hash),
            (
                format!("anna:{}", bcrypt.replace("$04$", "$03$")),
                LineError::Hash,
            ),
            (
                format!("anna:{}", bcrypt.replace("$04$", "$31$")),
                LineError::Cost,
            ),
            (format!("anna:{}", &sha[..sha.len() - 1]), LineError::Hash),
            (
                format!("anna:{}", sha.replace("$6$", "$6$rounds=999999999$")),
                LineError::Cost,
            ),
            (
                format!("anna:{}", sha.replace("$6$", "$6$rounds=1$")),
                LineError::Hash,
            ),
            (
                format!("anna:{}", sha.replace("$6$", "$6$a$b$c$")),
                LineError::Hash,
            ),
        ] {
            let errors = users(&["", &line]).unwrap_err();
            assert_eq!(errors, [(2, error)], "{line}");
        }
        assert_eq!(users(&[ANNA, ANNA]).unwrap_err(), [(2, LineError::Twice)]);
        assert_eq!(users(&["#"]).unwrap_err(), [(1, LineError::Nobody)]);
        assert_eq!(users(&["a", "b"]).unwrap_err().len(), 2);
        // More rounds than usual are allowed.
        let more = format!("anna:{}", sha.replace("$6$", "$6$rounds=6000$"));
        assert!(!users(&[&more]).unwrap().check_password("anna", "secret"));
    }
}
