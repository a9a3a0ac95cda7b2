//! Users of the admin API: names, roles, and hashes of passwords or tokens, from a file.
//!
//! A line is `NAME:ROLE:HASH`. The hash is one of a password (Argon2, bcrypt, SHA-crypt), or
//! `token:` with the SHA-256 of a token in hexadecimal digits. Empty lines and those that begin with `#` say nothing.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_manager::auth::{Hash, LineError, MAX_PASSWORD, is_user, lines};
use evenkeel_manager::config::{FileName, Problem, kept, one_line, read_secret};
use evenkeel_net::replacement::Replacement;
use sha2::{Digest, Sha256};

use crate::actor::Role;

/// Largest file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Most complaints about one file.
const MAX_PROBLEMS: usize = 20;

/// Secret that proves that somebody is the user.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Proof {
    Password(Hash),
    /// SHA-256 of the token: tokens are random, so that nobody finds one by trying.
    Token([u8; 32]),
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) role: Role,
    proof: Proof,
}

/// All users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Users {
    by_name: HashMap<String, User>,
    by_token: HashMap<[u8; 32], String>,
}

/// Fault of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BadLine {
    #[error("the line is not NAME:ROLE:HASH; `evenkeel users` writes such lines")]
    Form,
    #[error("the role is none of view, operate, administer")]
    Role,
    #[error("the hash is not `token:` with 64 hexadecimal digits, the SHA-256 of a token")]
    Token,
    #[error("{0}")]
    Hash(LineError),
}

impl Users {
    /// Reads the users of a file.
    pub(crate) fn from_file(file: &FileName) -> Result<Self, Vec<Problem>> {
        let path = file.path.display();
        let problem = |what: String| file.place.problem(format!("{path}{what}"));
        let read = |path: &Path| read_secret(path, MAX_FILE).map(String::into_bytes);
        let make = |source: &kept::Source| {
            let text = source.read(&file.path, read);
            let text = text.map_err(|error| vec![problem(format!(" {error}"))])?;
            Users::parse(&String::from_utf8_lossy(&text)).map_err(|errors| {
                let shown = errors.into_iter().take(MAX_PROBLEMS);
                shown
                    .map(|(line, error)| problem(format!(":{line}: {error}")))
                    .collect::<Vec<_>>()
            })
        };
        kept::load_or_keep(make, |problems| one_line(problems))
    }

    fn parse(text: &str) -> Result<Self, Vec<(usize, BadLine)>> {
        let (mut users, mut errors) = (Users::default(), Vec::new());
        for (number, line) in lines(text) {
            match parse_line(line) {
                Ok((name, user)) => {
                    if let Proof::Token(hash) = user.proof {
                        users.by_token.insert(hash, name.to_owned());
                    }
                    if users.by_name.insert(name.to_owned(), user).is_some() {
                        errors.push((number, BadLine::Hash(LineError::Twice)));
                    }
                }
                Err(error) => errors.push((number, error)),
            }
        }
        if users.by_name.is_empty() && errors.is_empty() {
            errors.push((1, BadLine::Hash(LineError::Nobody)));
        }
        match errors.is_empty() {
            true => Ok(users),
            false => Err(errors),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&User> {
        self.by_name.get(name)
    }

    /// Returns the user of a token. Only hashes are compared, so that the time tells nothing about tokens.
    pub(crate) fn of_token(&self, token: &str) -> Option<(&str, &User)> {
        let name = self.by_token.get(&sha256(token.as_bytes()))?;
        Some((name, self.by_name.get(name)?))
    }

    /// True if that is the user's password. The check takes a tenth of a second of a CPU, and as long for a
    /// user who is not there or has a token.
    pub(crate) fn check_password(&self, name: &str, password: &str) -> bool {
        let known = self.by_name.get(name).map(|user| &user.proof);
        if let Some(Proof::Password(hash)) = known {
            return hash.is_of(password);
        }
        let another = self.by_name.values().find_map(|user| match &user.proof {
            Proof::Password(hash) => Some(hash),
            Proof::Token(_) => None,
        });
        if let Some(hash) = another {
            // The same work; what comes of it does not matter.
            std::hint::black_box(hash.is_of(password));
        }
        false
    }
}

fn parse_line(line: &str) -> Result<(&str, User), BadLine> {
    let mut parts = line.splitn(3, ':');
    let (Some(name), Some(role), Some(proof)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(BadLine::Form);
    };
    check_name(name).map_err(BadLine::Hash)?;
    let role = Role::of_name(role).ok_or(BadLine::Role)?;
    let proof = match proof.strip_prefix("token:") {
        Some(digits) => Proof::Token(of_hex(digits).ok_or(BadLine::Token)?),
        None => Proof::Password(Hash::parse(proof).map_err(BadLine::Hash)?),
    };
    Ok((name, User { role, proof }))
}

fn check_name(name: &str) -> Result<(), LineError> {
    match is_user(name) && !name.starts_with('#') && !name.contains(':') {
        true => Ok(()),
        false => Err(LineError::User),
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (place, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *place = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Reason why a file of users stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file cannot be read or written.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The content of the file is wrong.
    #[error("{0}")]
    Content(String),
    /// The name or the password cannot be one.
    #[error("{0}")]
    Refused(String),
}

/// A file of users, to be changed by its administrator.
pub struct UsersFile<'a>(pub &'a Path);

impl fmt::Debug for UsersFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

/// Shortest password that is taken, in characters.
const MIN_PASSWORD: usize = 8;

impl UsersFile<'_> {
    /// Gives the user `name` a role and a password: a new one, or instead of what there was.
    ///
    /// # Errors
    ///
    /// The name or password cannot be one, or the file cannot be changed.
    pub fn set_password(&self, name: &str, role: Role, password: &str) -> Result<(), EditError> {
        if password.chars().count() < MIN_PASSWORD || password.len() > MAX_PASSWORD {
            return Err(EditError::Refused(format!(
                "a password must have at least {MIN_PASSWORD} characters, and at most {MAX_PASSWORD} bytes"
            )));
        }
        let hash = self
            .salt()
            .map(|salt| Hash::text_of(password, &salt))?
            .ok_or_else(|| EditError::Refused("the password cannot be hashed".into()))?;
        self.set(name, Some(format!("{name}:{}:{hash}", role.name())))
    }

    /// Gives the user `name` a role and a new token, which is answered and stands nowhere else.
    ///
    /// # Errors
    ///
    /// The name cannot be one, or the file cannot be changed.
    pub fn set_token(&self, name: &str, role: Role) -> Result<String, EditError> {
        let bytes = evenkeel_net::random_bytes::<32>().map_err(|error| self.edit_error(error))?;
        let token = URL_SAFE_NO_PAD.encode(bytes);
        let hash = hex(&sha256(token.as_bytes()));
        self.set(name, Some(format!("{name}:{}:token:{hash}", role.name())))?;
        Ok(token)
    }

    /// Removes a user.
    ///
    /// # Errors
    ///
    /// There is none of that name, or the file cannot be changed.
    pub fn remove(&self, name: &str) -> Result<(), EditError> {
        if !self.read()?.lines().any(|line| is_of(line, name)) {
            let path = self.0.display();
            return Err(EditError::Refused(format!("{path} has no user {name:?}")));
        }
        self.set(name, None)
    }

    /// Returns the users with their roles, and whether each has a token instead of a password; in the order
    /// of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or something in it is wrong.
    pub fn list_users(&self) -> Result<Vec<(String, Role, bool)>, EditError> {
        let text = self.read()?;
        self.check_text(&text)?;
        let users = lines(&text).filter_map(|(_, line)| parse_line(line).ok());
        let listed = users.map(|(name, user)| {
            let is_token = matches!(user.proof, Proof::Token(_));
            (name.to_owned(), user.role, is_token)
        });
        Ok(listed.collect())
    }

    fn salt(&self) -> Result<[u8; 16], EditError> {
        evenkeel_net::random_bytes::<16>().map_err(|error| self.edit_error(error))
    }

    fn edit_error(&self, error: std::io::Error) -> EditError {
        EditError::Io(self.0.display().to_string(), error)
    }

    /// Returns the file's text; the text of a file that is not there is empty.
    fn read(&self) -> Result<String, EditError> {
        match std::fs::read_to_string(self.0) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(self.edit_error(error)),
        }
    }

    fn check_text(&self, text: &str) -> Result<(), EditError> {
        let path = self.0.display();
        let wrong = match Users::parse(text) {
            Ok(_) => return Ok(()),
            // Nobody is left, or was there.
            Err(errors) => errors
                .into_iter()
                .filter(|(_, error)| *error != BadLine::Hash(LineError::Nobody)),
        };
        let lines: Vec<_> = wrong
            .take(MAX_PROBLEMS)
            .map(|(line, error)| format!("{path}:{line}: {error}"))
            .collect();
        match lines.is_empty() {
            true => Ok(()),
            false => Err(EditError::Content(lines.join("\n"))),
        }
    }

    /// Puts `line` where that of `name` is, or at the end. All other lines stay. The file is replaced as a
    /// whole, and is readable for its owner only if it is new.
    fn set(&self, name: &str, line: Option<String>) -> Result<(), EditError> {
        check_name(name).map_err(|error| EditError::Refused(error.to_string()))?;
        let text = self.read()?;
        self.check_text(&text)?;
        let mut line = line;
        let mut lines: Vec<String> = Vec::new();
        for old in text.lines() {
            match is_of(old, name) {
                true => lines.extend(line.take()),
                false => lines.push(old.to_owned()),
            }
        }
        lines.extend(line);
        let text: String = lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect();
        let replaced = Replacement::write_or_create(self.0, &text).and_then(Replacement::commit);
        replaced.map_err(|error| self.edit_error(error))
    }
}

fn is_of(line: &str, name: &str) -> bool {
    !line.starts_with('#') && line.split_once(':').is_some_and(|(of, _)| of == name)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns a set of users: anna, with the password `secret`.
    pub(crate) fn users() -> Users {
        Users::parse(ANNA).unwrap()
    }

    const ANNA: &str =
        "anna:administer:$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy";

    #[test]
    fn users_have_roles_and_passwords_or_tokens() {
        let token = hex(&sha256(b"t0ken"));
        let text = format!("# all\n\n{ANNA}\ngrafana:view:token:{token}\n");
        let users = Users::parse(&text).unwrap();
        assert_eq!(users.get("anna").unwrap().role, Role::Administer);
        assert!(users.check_password("anna", "secret"));
        assert!(!users.check_password("anna", "Secret"));
        assert!(!users.check_password("bert", "secret"));
        let (name, user) = users.of_token("t0ken").unwrap();
        assert_eq!((name, user.role), ("grafana", Role::View));
        assert!(users.of_token("token").is_none());
        // A token is no password, and its hash no token.
        assert!(!users.check_password("grafana", "t0ken"));
        assert!(users.of_token(&token).is_none());
    }

    #[test]
    fn lines_that_say_too_little_are_refused() {
        for (line, error) in [
            ("anna", BadLine::Form),
            ("anna:view", BadLine::Form),
            ("anna:root:$2y$", BadLine::Role),
            (":view:token:00", BadLine::Hash(LineError::User)),
            ("anna:view:token:00", BadLine::Token),
            ("anna:view:secret", BadLine::Hash(LineError::Hash)),
        ] {
            assert_eq!(Users::parse(line).unwrap_err(), [(1, error)], "{line}");
        }
        let twice = Users::parse(&format!("{ANNA}\n{ANNA}")).unwrap_err();
        assert_eq!(twice, [(2, BadLine::Hash(LineError::Twice))]);
        let nobody = Users::parse("# nobody\n").unwrap_err();
        assert_eq!(nobody, [(1, BadLine::Hash(LineError::Nobody))]);
    }

    #[test]
    fn files_are_changed_line_by_line() {
        let folder = std::env::temp_dir().join(format!("evenkeel-users-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("users");
        let file = UsersFile(&path);
        file.set_password("anna", Role::View, "correct horse")
            .unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("# ours\n{text}")).unwrap();
        let token = file.set_token("grafana", Role::View).unwrap();
        file.set_password("anna", Role::Administer, "battery staple")
            .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# ours\nanna:administer:$argon2id$"),
            "{text}"
        );
        let users = Users::parse(&text).unwrap();
        assert!(users.check_password("anna", "battery staple"));
        assert!(!users.check_password("anna", "correct horse"));
        assert_eq!(users.of_token(&token).unwrap().0, "grafana");
        let listed = file.list_users().unwrap();
        let wanted = [
            ("anna", Role::Administer, false),
            ("grafana", Role::View, true),
        ];
        assert_eq!(
            listed,
            wanted.map(|(name, role, token)| (name.to_owned(), role, token))
        );
        file.remove("anna").unwrap();
        assert!(matches!(file.remove("anna"), Err(EditError::Refused(_))));
        for name in ["", "a:b", "#a", "a\nb"] {
            assert!(file.set_token(name, Role::View).is_err(), "{name:?}");
        }
        assert!(file.set_password("bert", Role::View, "short").is_err());
        std::fs::write(&path, "broken\n").unwrap();
        let error = file
            .set_token("grafana", Role::View)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with(
                "users:1: the line is not NAME:ROLE:HASH; `evenkeel users` writes such lines"
            ),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "broken\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
