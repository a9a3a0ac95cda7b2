//! CORBA clients and servers with omniORB.

use evenkeel_e2e::omniorb::{self, Client, Server};

/// The peers themselves: what a client sees without a balancer is what it must see with one.
#[test]
fn clients_call_servers_in_every_version() {
    if !omniorb::can_run() {
        return;
    }
    let mut server = Server::start("a", &[]);
    for version in ["1.0", "1.1", "1.2"] {
        let mut client = Client::start(server.peer(), &["-ORBmaxGIOPVersion", version]);
        assert_eq!(client.ask("who"), "a");
        assert_eq!(client.ask("add 1 2"), "3");
        assert_eq!(client.ask("blob 100000"), "blob 100000");
        assert_eq!(client.ask("reflect recursive"), "reflect recursive");
        assert_eq!(client.ask("fail 1"), "error TRANSIENT 0x7 COMPLETED_NO");
    }
    let mut client = Client::start(server.sessions(), &[]);
    assert_eq!(client.ask("open x"), "open");
    assert_eq!(client.ask("session who"), "a/x");
    let before = server.served();
    let mut client = Client::repeat(server.peer(), "who", &["--count", "10"]);
    assert_eq!(client.line(), "bound a");
    assert!(client.line().starts_with("done 10 0 "));
    assert_eq!(client.finish(), [""; 0]);
    assert_eq!(server.served(), before + 10);
}
