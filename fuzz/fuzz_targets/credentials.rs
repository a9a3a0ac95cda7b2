//! Users, passwords and what clients send of them: any text as a file of users, any value as that of `Authorization`,
//! and hashes with any salt. No panic; what is taken is within its limits; a password is right for its own hash, and
//! another one is not.
#![no_main]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_manager::auth::{
    Hash, LineError, MAX_PASSWORD, MAX_USER, Users, basic_credentials, is_user,
};
use libfuzzer_sys::fuzz_target;
use sha_crypt::{Sha256Params, Sha512Params, sha256_crypt_b64, sha512_crypt_b64};

/// The parts of the input are apart by this.
const END: u8 = 0xFF;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(4, |&byte| byte == END);
    let mut next = || parts.next().unwrap_or_default();
    let (file, value, salt, password) = (next(), next(), next(), next());
    look_at_users(&String::from_utf8_lossy(file));
    look_at_credentials(value);
    let password = String::from_utf8_lossy(password);
    let salt = String::from_utf8_lossy(salt);
    look_at_hash(&salt, &password);
});

fn look_at_users(text: &str) {
    let lines = text.lines().count();
    match Users::parse(text.to_owned()) {
        Ok(users) => {
            for line in text.lines() {
                let name = line.split(':').next().unwrap_or_default();
                if let Some(user) = users.user(name) {
                    assert!(is_user(&user));
                    // What is before it would lock the account, where such lines come from.
                    assert!(line[name.len()..].starts_with(":$"), "{line}");
                }
            }
            // Longer than any password, so that nothing is computed.
            assert!(!users.check_password("nobody", &"x".repeat(MAX_PASSWORD + 1)));
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for (line, error) in errors {
                assert!((1..=lines.max(1)).contains(&line), "{line}: {error}");
            }
        }
    }
}

fn look_at_credentials(value: &[u8]) {
    // What is Base64 is rare in what a fuzzer makes.
    let encoded = format!("Basic {}", STANDARD.encode(value));
    for (value, content) in [(value, None), (encoded.as_bytes(), Some(value))] {
        let Some((user, password)) = basic_credentials(value) else {
            continue;
        };
        assert!(user.len() <= MAX_USER && password.len() <= MAX_PASSWORD);
        assert!(!user.contains(':'));
        let both = format!("{user}:{password}");
        assert!(!both.contains(char::is_control));
        assert!(content.is_none_or(|content| content == both.as_bytes()));
    }
}

fn look_at_hash(salt: &str, password: &str) {
    const ROUNDS: usize = 1000;
    let (bytes, of256, of512) = (
        password.as_bytes(),
        Sha256Params::new(ROUNDS),
        Sha512Params::new(ROUNDS),
    );
    if bytes.len() > MAX_PASSWORD {
        return;
    }
    let made = [
        (
            "5",
            sha256_crypt_b64(bytes, salt.as_bytes(), &of256.expect("enough")).ok(),
        ),
        (
            "6",
            sha512_crypt_b64(bytes, salt.as_bytes(), &of512.expect("enough")).ok(),
        ),
    ];
    for (kind, hash) in made {
        let Some(hash) = hash else { continue };
        let text = format!("${kind}$rounds={ROUNDS}${salt}${hash}");
        match Hash::parse(&text) {
            Ok(hash) => {
                assert!(hash.is_of(password), "{text}");
                assert!(!hash.is_of(&format!("{password}x")), "{text}");
            }
            Err(LineError::Hash) => {
                let fits = salt.len() <= 16 && !salt.contains('$');
                assert!(!fits, "{text}");
            }
            Err(error) => panic!("{error}: {text}"),
        }
    }
}
