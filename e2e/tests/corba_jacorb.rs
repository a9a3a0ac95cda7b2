//! The CORBA service with JacORB's servers and clients, as Maven Central has it.

use evenkeel_e2e::jacorb::{Client, Server, can_run};

/// What the tests stand on: the two talk to each other, with nothing of ours between them.
#[test]
fn a_client_and_a_server_talk() {
    if !can_run() {
        return;
    }
    let mut server = Server::start("a", &[]);
    let mut client = Client::start(server.peer(), &[]);
    assert_eq!(client.ask("who"), "a");
    assert_eq!(client.ask("wide grüße"), "grüße");
    for kind in ["alias", "nested", "object", "exception", "recursive"] {
        let reflect = format!("reflect {kind}");
        assert_eq!(client.ask(&reflect), reflect);
    }
    let refused = "error IDL:evenkeel.org/PeerTest/Refused:1.0 as asked 42";
    assert_eq!(client.ask("fail 0"), refused);
    assert_eq!(client.ask("fail 1"), "error TRANSIENT 0x7 COMPLETED_NO");
    let sessions = server.sessions().to_owned();
    assert_eq!(client.ask(&format!("use {sessions}")), "use");
    assert_eq!(client.ask("open me"), "open");
    assert_eq!(client.ask("session who"), "a/me");
    assert_eq!(server.served(), 11);
}
