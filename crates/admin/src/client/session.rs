//! Sessions of users who log in with a password.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Client, ClientError};
use crate::ErrorBody;
use crate::wire::{Credentials, LoggedIn};

/// Longest time that the end of a session may take. A session whose end the API does not hear of ends by
/// itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// User of a client, and the state of the session.
pub(super) struct Login {
    credentials: Credentials,
    state: Mutex<State>,
}

/// State of a session.
enum State {
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
    cookie: String,
    csrf: String,
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

impl Client {
    /// Opens a session, if the client has a user and none is open.
    ///
    /// # Errors
    ///
    /// The API does not answer, or does not let the user in.
    pub fn log_in(&self) -> Result<(), ClientError> {
        self.ensure_session().map(drop)
    }

    /// Returns the session, and whether it was opened just now; `None` without a user.
    pub(super) fn ensure_session(&self) -> Result<(Option<Session>, bool), ClientError> {
        let Some(login) = &self.login else {
            return Ok((None, false));
        };
        let mut state = login.state.lock();
        match &*state {
            State::Open(session) => return Ok((Some(session.clone()), false)),
            State::Over => return Ok((None, false)),
            State::Refused(body) => {
                let body = body.clone();
                return Err(ClientError::Refused { status: 401, body });
            }
            State::Closed => {}
        }
        let body = serde_json::to_vec(&login.credentials);
        let body = body.map_err(|error| self.not_the_api(error.to_string()))?;
        let answer = self.send_request("POST", "/v1/login", &[], Some(&body))?;
        if answer.code != 200 {
            let refused = self.refusal_error(&answer);
            if let ClientError::Refused { status: 401, body } = &refused {
                *state = State::Refused(body.clone());
            }
            return Err(refused);
        }
        let read = serde_json::from_slice::<LoggedIn>(&answer.body);
        let read = read.map_err(|error| self.not_the_api(error.to_string()))?;
        let session = Session {
            cookie: answer.cookie.split(';').next().unwrap_or_default().into(),
            csrf: read.csrf,
        };
        let can_be_sent = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if session
            .header_fields()
            .iter()
            .any(|(_, value)| !can_be_sent(value))
        {
            return Err(self.not_the_api("the session that it gives cannot be sent back".into()));
        }
        *state = State::Open(session.clone());
        Ok((Some(session), true))
    }

    /// Forgets the session, which is over.
    pub(super) fn forget_session(&self) {
        if let Some(login) = &self.login {
            let mut state = login.state.lock();
            if matches!(*state, State::Open(_)) {
                *state = State::Closed;
            }
        }
    }

    /// Ends the session, if one is open. The client opens no other one.
    pub fn log_out(&self) {
        // Another thread that logs in meanwhile is not waited for.
        let state = self.login.as_ref().and_then(|login| login.state.try_lock());
        let Some(mut state) = state else {
            return;
        };
        if let State::Open(session) = std::mem::replace(&mut *state, State::Over) {
            let farewell = Client {
                address: self.address.clone(),
                host: self.host.clone(),
                port: self.port,
                tls: self.tls.clone(),
                authorization: None,
                login: None,
                patience: FAREWELL.min(self.patience),
            };
            // If that fails, the session ends with `session_idle`.
            let _ =
                farewell.send_request("POST", "/v1/logout", &session.header_fields(), Some(b"{}"));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.log_out();
    }
}
