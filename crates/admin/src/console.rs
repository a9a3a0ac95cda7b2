//! The pages of the web console: files of the bundle that the program was built with.
//!
//! Without a session, where users must log in, there is nothing but the login page.

use axum::Extension;
use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    LOCATION, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use evenkeel_console::File;

use crate::actor::Actor;
use crate::error::ApiError;

/// Policy for what pages may load and do: only what comes from this server, and nothing that stands in the
/// page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";

/// Path of the login page.
const LOGIN: &str = "/login/";

/// Path of the console.
const CONSOLE: &str = "/console/";

/// Sends clients from the start page to the console.
pub(crate) async fn start() -> Response {
    redirect_to(CONSOLE)
}

/// Returns the console's own page.
pub(crate) async fn show_index(actor: Option<Extension<Actor>>, headers: HeaderMap) -> Response {
    match actor {
        Some(_) => find_page("index.html", &headers),
        None => redirect_to(LOGIN),
    }
}

/// Returns a file of the console. A path of no file is a page that the console's program shows.
pub(crate) async fn show_file(
    Path(path): Path<String>,
    actor: Option<Extension<Actor>>,
    headers: HeaderMap,
) -> Response {
    let is_page = !path.starts_with("assets/") && evenkeel_console::find_file(&path).is_none();
    match actor {
        None if is_page => redirect_to(LOGIN),
        None => ApiError::unauthorized().into_response(),
        Some(_) if is_page => find_page("index.html", &headers),
        Some(_) => find_page(&path, &headers),
    }
}

/// Returns the login page.
pub(crate) async fn login_page(headers: HeaderMap) -> Response {
    find_page("login/index.html", &headers)
}

/// Returns a file of the login page: these files are in a folder of their own.
pub(crate) async fn login_file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    find_page(&format!("login/{path}"), &headers)
}

fn redirect_to(path: &'static str) -> Response {
    with_fields((StatusCode::SEE_OTHER, [(LOCATION, path)]).into_response())
}

fn find_page(path: &str, headers: &HeaderMap) -> Response {
    match evenkeel_console::find_file(path) {
        Some(file) => with_fields(send_file(file, headers)),
        None if !evenkeel_console::is_there() => with_fields(missing_page()),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn send_file(file: &'static File, headers: &HeaderMap) -> Response {
    let accepted = headers
        .get(ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    let mut codings = accepted.into_iter().flat_map(|value| value.split(','));
    let takes_gzip = codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        is_gzip
            && parts
                .next()
                .is_none_or(|weight| !matches!(weight, "q=0" | "q=0.0"))
    });
    // Names of assets change with what is in them.
    let freshness = match file.path.contains("assets/") {
        true => "private, max-age=31536000, immutable",
        false => "no-cache",
    };
    let fields = [
        (CONTENT_TYPE, file.media_type()),
        (CACHE_CONTROL, freshness),
        (VARY, "Accept-Encoding"),
    ];
    match takes_gzip {
        true => (fields, [(CONTENT_ENCODING, "gzip")], file.gzip).into_response(),
        false => (fields, file.plain).into_response(),
    }
}

/// Page that is shown instead of the console if the program was built without it.
const MISSING: &str = "<!doctype html>\n<html lang=\"en\">\n<title>Evenkeel</title>\n<h1>No console in this program</h1>\n\
<p>It was built without the web console, which needs Node.js and npm at build time. Everything else works: \
<code>evenkeel top</code>, <code>evenkeel ctl</code> and the API do all that the console does.</p>\n\
<p>To have it, run <code>make console build</code> in the sources, and start that program.</p>\n</html>\n";

fn missing_page() -> Response {
    let html = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
    ];
    (StatusCode::NOT_FOUND, html, MISSING).into_response()
}

/// Adds the fields that keep other sites from using the pages.
fn with_fields(mut response: Response) -> Response {
    let fields: [(HeaderName, &'static str); 4] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in fields {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
