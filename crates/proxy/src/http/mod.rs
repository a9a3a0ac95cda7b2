//! HTTP rules: one task per client connection carries its requests, one after the
//! other, each over a connection to the member that was chosen for it.

mod alias_refusal;
mod ask;
mod asked_models;
mod authentication;
mod call;
mod client;
mod copied;
mod copy;
mod delivered;
mod encoder;
mod engine_answer;
mod engine_error;
mod exchange;
mod failure;
mod fallback;
mod fallbacks;
mod first_bytes;
pub(crate) mod flow;
mod hedge;
mod limited;
mod login;
mod malformed;
mod member_connection;
mod mirror;
mod model_choice;
mod models_answer;
mod next_request;
mod progress;
pub(crate) mod prompt;
mod question;
mod read_prompt;
mod record;
mod request;
mod response;
mod retry;
mod route;
mod route_answer;
mod settle;
mod sticky;
mod stream;
mod summary;
mod target_facts;
mod tasks;
mod time_limits;
mod token_limit;
mod trial;

use std::rc::Rc;

use self::client::{After, Client};
use self::stream::serve_stream;
use self::tasks::{TaskInbox, TaskPool};
use crate::http2::server::{Work, serve_http2};
use crate::io::Io;
use crate::session::Session;

/// A client that has connected.
type NewClient = (Session, Io);

/// Tasks of a worker that serve clients of HTTP rules, and streams of those that speak HTTP/2.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    clients: TaskPool<NewClient>,
    streams: TaskPool<Work>,
}

impl Tasks {
    /// Serves a client in a task.
    pub(crate) fn serve_client(self: &Rc<Self>, session: Session, client: Io) {
        if let Some(inbox) = self.clients.assign((session, client)) {
            tokio::task::spawn_local(serve_clients(Rc::clone(self), inbox));
        }
    }

    /// Serves a stream of a client in a task.
    fn serve_stream(self: &Rc<Self>, work: Work) {
        if let Some(inbox) = self.streams.assign(work) {
            tokio::task::spawn_local(serve_streams(Rc::clone(self), inbox));
        }
    }
}

/// Serves clients, one after the other.
async fn serve_clients(tasks: Rc<Tasks>, inbox: Rc<TaskInbox<NewClient>>) {
    loop {
        let (session, client) = inbox.next_work().await;
        serve_http(session, client, &tasks).await;
        if !tasks.clients.keep_task(&inbox) {
            return;
        }
    }
}

/// Serves streams, one after the other.
async fn serve_streams(tasks: Rc<Tasks>, inbox: Rc<TaskInbox<Work>>) {
    loop {
        let Work {
            connection,
            stream,
            head,
            connects,
        } = inbox.next_work().await;
        serve_stream(&connection, stream, head, connects).await;
        drop(connection);
        if !tasks.streams.keep_task(&inbox) {
            return;
        }
    }
}

/// Serves one client. `tasks` serve the streams of a client that speaks HTTP/2.
async fn serve_http(session: Session, stream: Io, tasks: &Rc<Tasks>) {
    let mut client = Client::new(session, stream, Rc::default());
    let after = loop {
        let mut request = match client.next_request().await {
            Ok(request) => request,
            Err(after) => break after,
        };
        client.limit_request(&request);
        let after = client.carry_request(&mut request).await;
        client.lift_limits(&request);
        match after {
            After::NextRequest => client.age.add_request(),
            after => break after,
        }
    };
    match after {
        After::NextRequest | After::Close => {}
        After::Linger => client.linger_until_closed().await,
        After::Cut => client.stream.reset_on_drop(),
        After::Http2 => {
            let Client {
                session,
                stream,
                input,
                ..
            } = client;
            // Streams are served elsewhere, and do not come here.
            if let Io::Connection(connection) = stream {
                let tasks = Rc::clone(tasks);
                let serve = move |work| tasks.serve_stream(work);
                tokio::task::spawn_local(serve_http2(session, connection, input, serve));
            }
            return;
        }
    }
    if let Some(input) = client.input.take() {
        client.session.worker.buffers.give_back(input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_http<F: Future>(_: fn(Rc<Tasks>, Rc<TaskInbox<NewClient>>) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_tcp<F: Future>(_: fn(Session, Io) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand idle clients are ten thousand of these.
    #[test]
    fn a_connection_is_small() {
        let http = size_of_http(serve_clients);
        // With the right to its file and to the memory of its buffers, what bounds interim
        // responses of a member, a second try where an idle connection was closed, the route and
        // limits of the client (twice 8 bytes each), its age and the limits of its slowness, what a cookie says, and where copies of
        // messages and the user are (three times 8 bytes), whether a second member was asked,
        // encoders (twice 8 bytes, and which coding), and how a request is held for a better member (three
        // times 8 bytes), the client's own connection to a member (8 bytes), and for each of three messages which of its
        // trailers pass and load reports among them (24 bytes), and how far a stream is (8 bytes in each ticket, and who follows
        // it), and for each of three messages the bound of the body that is kept (8 bytes), and where the
        // parts of a head for a member of HTTP/2 are (8 bytes). For engines of language
        // models: the reader of an answer (8 bytes for each of three messages), the request at the engine (8 bytes in
        // each ticket), and the prompt and its plan, where they are made and where they are used (64 bytes), facts for the
        // groups of models and held tokens (twice 8 bytes), and the body of an error that their clients know (8 bytes); all else is in boxes that other groups do not have. The task serves other clients afterwards: its inbox and its pool (32 bytes). The trial of an ejected member and a request for the list of models, with the places where both are awaited, take 40 bytes, and the name of a single model that a client asks for 8 bytes. A retry waits in a box before it begins, and fails in one (56 bytes). For several mirrors: the bytes that other messages have, too (8 bytes for each of three messages), and who gets them (16 bytes). Other groups of a model that may get the request afterwards take 8 bytes. A transport more, as there is in tests, costs a word
        // for each connection.
        assert!(
            http <= 2760 + 32 + 64 + 24 + 8 + 96 + 32 + 16 + 40 + 8 + 40 + 8 + 56 + 8,
            "{http}"
        );
        let tcp = size_of_tcp(crate::tcp::serve_tcp);
        assert!(tcp <= 1408 + 16, "{tcp}");
    }
}
