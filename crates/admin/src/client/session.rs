//! Sessions of users who log in with a password.

use std::fmt;

use parking_lot::Mutex;

use crate::ErrorBody;
use crate::wire::Credentials;

/// User of a client, and the state of the session.
pub(super) struct Login {
    pub(super) credentials: Credentials,
    pub(super) state: Mutex<State>,
}

/// State of a session.
pub(super) enum State {
    /// The next request opens one.
    Closed,
    Open(Session),
    /// The password is wrong. The password is not sent a second time: failures lock the user out.
    Refused(ErrorBody),
    /// The client has logged out for good.
    Over,
}

/// Secrets of a session, as requests carry them.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) cookie: String,
    pub(super) csrf: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.credentials.user)
            .finish_non_exhaustive()
    }
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Self {
        Login {
            credentials: Credentials {
                user: user.into(),
                password: password.into(),
            },
            state: Mutex::new(State::Closed),
        }
    }
}

impl Session {
    /// Fields of a request of this session.
    pub(super) fn header_fields(&self) -> [(&str, &str); 2] {
        [("Cookie", &self.cookie), ("X-Csrf-Token", &self.csrf)]
    }
}
