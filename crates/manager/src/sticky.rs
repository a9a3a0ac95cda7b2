//! Cookies that bind clients to members: what is in them, and which member each one names.
//!
//! A cookie's value is a message authentication code of the names of group and member, and two
//! characters that tell when its client leaves in a load alert. Clients of a member share the first
//! part, so that nobody can be followed by it, and nothing is kept here of any client. All
//! balancers with the same key make, and know, the same values.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_core::group::Group;
use evenkeel_core::member::MemberId;
use evenkeel_net::key_file;

use crate::config::{Problem, SameSite, SharedGroup, Sticky};

/// Cookies of groups that bind clients by one, by the groups' names.
pub type Cookies = HashMap<String, Arc<Cookie>>;

/// Shortest secret, in bytes.
const MIN_SECRET: usize = 32;

/// Bytes of the code of a member: enough that nobody guesses one.
const CODE: usize = 18;

/// Number of characters of the code.
const TEXT: usize = CODE / 3 * 4;

/// Characters of a turn, and how many there are.
const TURN: usize = 2;
const TURNS: u16 = 1 << (6 * TURN);

/// Reads the keys of the cookies of `groups`. If nothing has changed, the cookie that is `known` stays.
///
/// # Errors
///
/// All that is wrong, with the places in the configuration.
pub fn load(groups: &[SharedGroup], known: &Cookies) -> Result<Cookies, Vec<Problem>> {
    let (mut cookies, mut errors) = (Cookies::new(), Vec::new());
    for group in groups {
        let Some(config) = &group.sticky else {
            continue;
        };
        match secret(config) {
            Ok(secret) => {
                let cookie = Cookie::new(&group.name, config, &secret);
                let known = known
                    .get(&group.name)
                    .filter(|known| known.is_like(&cookie));
                let cookie = known.cloned().unwrap_or_else(|| Arc::new(cookie));
                cookies.insert(group.name.clone(), cookie);
            }
            Err(problem) => errors.push(*problem),
        }
    }
    match errors.is_empty() {
        true => Ok(cookies),
        false => Err(errors),
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "has {0} bytes, but a key needs at least {MIN_SECRET}: write one with `openssl rand -base64 48`"
)]
struct TooShort(usize);

fn secret(config: &Sticky) -> Result<Vec<u8>, Box<Problem>> {
    let Some(file) = &config.key_file else {
        return Ok(secret_of_process().to_vec());
    };
    let parse = |text: &str| match text.trim() {
        short if short.len() < MIN_SECRET => Err(TooShort(short.len())),
        secret => Ok(secret.as_bytes().to_vec()),
    };
    key_file::load_parsed(&file.path, parse)
        .map_err(|error| Box::new(file.place.problem(error.to_string())))
}

/// The key of cookies without a key file.
fn secret_of_process() -> &'static [u8; MIN_SECRET] {
    static SECRET: OnceLock<[u8; MIN_SECRET]> = OnceLock::new();
    SECRET.get_or_init(|| {
        let mut secret = [0; MIN_SECRET];
        // It only fails where the system has no randomness, and then no cookie may be made.
        let filled = aws_lc_rs::rand::fill(&mut secret);
        assert!(filled.is_ok(), "the system has no random numbers");
        secret
    })
}

/// The cookie of a group.
pub struct Cookie {
    group: Box<str>,
    config: Sticky,
    name: Box<str>,
    /// Attributes that follow the value in `Set-Cookie`, but for `Secure`.
    attributes: Box<str>,
    key: hmac::Key,
    /// The code of nothing: keys are the same that have the same.
    print: Code,
    members: ArcSwap<Members>,
}

/// The code of a member, as it stands in the cookie.
type Code = [u8; TEXT];

/// The members of a snapshot.
struct Members {
    /// Snapshot of the group that the codes belong to; none before the first one.
    of: Option<Arc<Group>>,
    by_code: HashMap<Code, usize>,
    codes: HashMap<MemberId, Code>,
}

/// Contents of a client's cookie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Named {
    /// The member that the client is bound to.
    pub member: MemberId,
    /// Place that the member had in the group.
    pub index: usize,
    /// Part of a load alert, from 0 to 1, that the client stays for.
    pub alert_share: f32,
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Cookie");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Cookie {
    fn new(group: &str, config: &Sticky, secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let same_site = match config.same_site {
            SameSite::Strict => "Strict",
            SameSite::Lax => "Lax",
            SameSite::None => "None",
        };
        let path = &config.cookie_path;
        let mut attributes = format!("; Path={path}; HttpOnly; SameSite={same_site}");
        if let Some(max_age) = config.max_age {
            attributes += &format!("; Max-Age={}", max_age.as_secs());
        }
        Cookie {
            group: group.into(),
            name: config.cookie_of(group).into(),
            attributes: attributes.into(),
            config: config.clone(),
            print: code(&key, &[]),
            key,
            members: ArcSwap::from_pointee(Members {
                of: None,
                by_code: HashMap::new(),
                codes: HashMap::new(),
            }),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.group == other.group && self.config == other.config && self.print == other.print
    }

    /// Returns the name of the cookie.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes over the members of a snapshot.
    pub fn update_members(&self, group: &Arc<Group>) {
        let members = self.members.load();
        if members.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, group)) {
            return;
        }
        let mut next = Members {
            of: Some(Arc::clone(group)),
            by_code: HashMap::new(),
            codes: HashMap::new(),
        };
        for (index, member) in group.members().iter().enumerate() {
            // A name without an address.
            if member.address.ip().is_some_and(|ip| ip.is_unspecified()) {
                continue;
            }
            // The address, not the name: that of a name with several addresses depends on how many
            // there are.
            let address = member.address.to_string();
            let code = code(&self.key, &[&self.group, &address]);
            next.by_code.entry(code).or_insert(index);
            next.codes.insert(member.id, code);
        }
        self.members.store(Arc::new(next));
    }

    /// The member that the cookie of a client with this value names.
    pub fn find(&self, value: &[u8]) -> Option<Named> {
        let (code, turn) = value.split_first_chunk::<TEXT>()?;
        let turn = turn_of(turn.try_into().ok()?)?;
        let members = self.members.load();
        let index = *members.by_code.get(code)?;
        let member = members.of.as_ref()?.members().get(index)?.id;
        Some(Named {
            member,
            index,
            alert_share: f32::from(turn) / f32::from(TURNS),
        })
    }

    /// The value of `Set-Cookie` for a client that is bound to `member`; `None` if that is not in
    /// the group any more. `secure` says that the client's connection is TLS. `turn` is a random
    /// number.
    pub fn set(&self, member: MemberId, secure: bool, turn: u16) -> Option<String> {
        let members = self.members.load();
        let code = str::from_utf8(members.codes.get(&member)?).ok()?;
        let turn = URL_SAFE_NO_PAD.encode([(turn >> 4) as u8, (turn << 4) as u8]);
        let turn = turn.get(..TURN)?;
        let secure = match secure || self.config.secure {
            true => "; Secure",
            false => "",
        };
        Some(format!(
            "{}={code}{turn}{}{secure}",
            self.name, self.attributes
        ))
    }
}

/// The turn that two characters stand for.
fn turn_of(text: [u8; TURN]) -> Option<u16> {
    let [first, second] = text;
    let bytes = URL_SAFE_NO_PAD.decode([first, second, b'A', b'A']).ok()?;
    let (high, low) = (u16::from(*bytes.first()?), u16::from(*bytes.get(1)?));
    Some(high << 4 | low >> 4)
}

/// The code of `parts`, which is another one for other parts.
fn code(key: &hmac::Key, parts: &[&str]) -> Code {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        // Names have no NUL.
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let tag = context.sign();
    let mut code = [b'A'; TEXT];
    let encoded = tag
        .as_ref()
        .get(..CODE)
        .map(|tag| URL_SAFE_NO_PAD.encode_slice(tag, &mut code));
    debug_assert_eq!(encoded, Some(Ok(TEXT)));
    code
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use evenkeel_core::group::GroupSettings;
    use evenkeel_core::load::Location;
    use evenkeel_core::member::{Member, Slot, Weight};
    use evenkeel_core::strategy::{Values, default_kind};

    use super::*;

    fn group(name: &str, hosts: &[u8]) -> Arc<Group> {
        let member = |(index, host): (usize, &u8)| Member {
            id: MemberId(index as u64),
            name: format!("m{host}").into(),
            given_name: None,
            address: std::net::SocketAddr::from(([192, 0, 2, *host], 80)).into(),
            host: "a".into(),
            max_connections: None,
            location: Arc::new(Location::new("l")),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        };
        let members = hosts.iter().enumerate().map(member).collect();
        let strategy = Values::defaults(default_kind());
        let settings = GroupSettings::default();
        Arc::new(Group::new(
            name,
            settings,
            &strategy,
            members,
            Arc::default(),
        ))
    }

    fn cookie(name: &str, secret: &[u8], hosts: &[u8]) -> Cookie {
        let cookie = Cookie::new(name, &Sticky::default(), secret);
        cookie.update_members(&group(name, hosts));
        cookie
    }

    /// The value of the cookie for the member with this id.
    fn value(cookie: &Cookie, id: u64, turn: u16) -> String {
        let set = cookie.set(MemberId(id), false, turn).unwrap();
        let (pair, attributes) = set.split_once(';').unwrap();
        assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
        let (name, value) = pair.split_once('=').unwrap();
        assert_eq!(name, cookie.name());
        assert_eq!(value.len(), TEXT + TURN);
        value.to_owned()
    }

    #[test]
    fn balancers_with_one_key_know_each_others_cookies() {
        let secret = [7; MIN_SECRET];
        let one = cookie("g", &secret, &[1, 2, 3]);
        // Members have other numbers and places there, and one is new.
        let other = cookie("g", &secret, &[9, 3, 2, 1]);
        let member = |id, turn| {
            other
                .find(value(&one, id, turn).as_bytes())
                .map(|named| named.member)
        };
        assert_eq!(
            [0, 1, 2].map(|id| member(id, 5)),
            [3, 2, 1].map(|id| Some(MemberId(id)))
        );
        assert!(
            one.find(value(&other, 0, 5).as_bytes()).is_none(),
            "it is not there"
        );
        for (name, secret) in [("h", &secret), ("g", &[8; MIN_SECRET])] {
            let foreign = cookie(name, secret, &[1, 2, 3]);
            assert!(foreign.find(value(&one, 0, 5).as_bytes()).is_none());
        }
        // What the value is must not change: it is in browsers.
        assert_eq!(value(&one, 0, 0), "Zsuzq0lpQOyqZT8ab2l2J1CwAA");
    }

    #[test]
    fn a_turn_is_one_of_4096_parts_of_an_alert() {
        let cookie = cookie("g", &[7; MIN_SECRET], &[1]);
        for turn in [0, 1, 63, 64, 2048, 4095] {
            let found = cookie.find(value(&cookie, 0, turn).as_bytes()).unwrap();
            assert_eq!(found.alert_share, f32::from(turn) / 4096.0);
        }
        // Random numbers beyond that wrap.
        assert_eq!(value(&cookie, 0, 4097), value(&cookie, 0, 1));
    }

    #[test]
    fn what_is_no_value_names_nobody() {
        let cookie = cookie("g", &[7; MIN_SECRET], &[1, 2]);
        let good = value(&cookie, 1, 77);
        assert!(cookie.find(good.as_bytes()).is_some());
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] = b'!';
            assert_eq!(cookie.find(&bad), None);
            assert_eq!(cookie.find(&good.as_bytes()[..at]), None);
        }
        for bad in [b"".as_slice(), b"\xff", &[b'A'; 26], &[b'A'; 100_000]] {
            assert_eq!(cookie.find(bad), None);
        }
        assert_eq!(cookie.find(format!("{good}A").as_bytes()), None);
    }

    #[test]
    fn a_cookie_follows_members_and_is_replaced_only_if_it_is_another_one() {
        let config = |sticky: &str| {
            let text = format!(
                "[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"192.0.2.1:80\"]\n{sticky}"
            );
            crate::config::parse("t", &text).unwrap().groups
        };
        let groups = config("sticky = true");
        let first = load(&groups, &Cookies::new()).unwrap();
        first["w"].update_members(&group("w", &[1]));
        let again = load(&groups, &first).unwrap();
        assert!(Arc::ptr_eq(&first["w"], &again["w"]));
        // Without a file the key is that of the process.
        let old = value(&first["w"], 0, 1);
        let other = load(&config("sticky = { cookie = \"x\", secure = true, same_site = \"none\", cookie_path = \"/a\", max_age = \"1h\" }"), &first).unwrap();
        other["w"].update_members(&group("w", &[4, 1]));
        assert_eq!(other["w"].find(old.as_bytes()).unwrap().member, MemberId(1));
        let set = other["w"].set(MemberId(1), false, 1).unwrap();
        assert!(
            set.ends_with("; Path=/a; HttpOnly; SameSite=None; Max-Age=3600; Secure"),
            "{set}"
        );
        assert_eq!(other["w"].set(MemberId(9), true, 1), None);

        let path = std::env::temp_dir().join(format!("evenkeel-sticky-{}", std::process::id()));
        let groups = config(&format!("sticky = {{ key_file = {path:?} }}"));
        let error = |known| load(&groups, known).unwrap_err()[0].to_string();
        assert!(
            error(&first).contains("t:4:23: rule.w.sticky.key_file: key file"),
            "{}",
            error(&first)
        );
        std::fs::write(&path, "0123456789abcdef0123456789abcde\n").unwrap();
        assert!(error(&first).contains("chmod o="));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(error(&first).contains("has 31 bytes, but a key needs at least 32"));
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let keyed = load(&groups, &first).unwrap();
        assert!(!Arc::ptr_eq(&first["w"], &keyed["w"]));
        assert!(Arc::ptr_eq(
            &keyed["w"],
            &load(&groups, &keyed).unwrap()["w"]
        ));
        std::fs::write(&path, "0123456789abcdef0123456789abcdeX\n").unwrap();
        assert!(!Arc::ptr_eq(
            &keyed["w"],
            &load(&groups, &keyed).unwrap()["w"]
        ));
        std::fs::remove_file(&path).unwrap();
    }
}
