//! Bodies of requests for engines are read before a member is chosen.

use super::client::Client;
use super::failure::Failure;
use super::prompt::Prompt;
use super::request::Request;
use super::route::RequestRoute;
use crate::watch::Stop;

impl Client {
    /// Reads the body of a request until its prompt is known, at most [`Prompt::max_bytes`] bytes, and not longer than the
    /// time for bodies. What was read is sent to the member later. A client that waits for a 100 (Continue) sends
    /// nothing before a member is chosen. Then the model gives the request its group, if the route has groups by models.
    pub(super) async fn read_prompt(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        prompt: &mut Prompt,
    ) -> Result<(), Failure> {
        let up = &mut request.up;
        up.read_body_here(prompt);
        if request.awaits_continue {
            return self.choose_by_model(request, prompt, false);
        }
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        let most = prompt.max_bytes();
        session.watch.arm_deadline(routed.route().timeouts.body);
        let read = session
            .watch
            .poll_until_stop(|cx| up.poll_ahead(cx, stream, most, worker, prompt));
        let read = read.await;
        session.watch.disarm_deadline();
        // The rest has the time that bodies have.
        let is_late = matches!(read, Err(Stop::Expired));
        match read {
            Ok(read) => read.map_err(Failure::from)?,
            Err(Stop::Expired) => {}
            Err(Stop::Cut) => return Err(Failure::Cut),
        }
        self.choose_by_model(request, prompt, is_late)
    }
}
