#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::*;

/// A C program that says where the headers have what is used here, and how it should be.
fn layout() -> (String, String) {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\n#define SAY(what) printf(\"%s=%zu\\n\", #what, (size_t)(what));\nint main(void) {\n",
    );
    let mut expected = String::new();
    let mut say = |what: &str, value: usize| {
        writeln!(program, "SAY({what})").unwrap();
        writeln!(expected, "{what}={value}").unwrap();
    };
    macro_rules! fields {
        ($c:literal $rust:ident: $($in_c:literal $in_rust:ident,)*) => {
            $(say(&format!("offsetof(struct {}, {})", $c, $in_c), offset_of!($rust, $in_rust));)*
        };
    }
    fields!("ibv_device" Device: "transport_type" transport,);
    fields!("ibv_context" Context: "device" device, "ops.poll_cq" poll_cq,
        "ops.req_notify_cq" req_notify_cq, "ops.post_send" post_send,);
    fields!("ibv_qp" Pair: "context" context,);
    fields!("ibv_cq" CompletionQueue: "context" context,);
    fields!("ibv_comp_channel" CompletionChannel: "fd" fd,);
    fields!("ibv_pd" Domain: "context" context,);
    fields!("ibv_mr" Region: "addr" address, "length" length, "lkey" local_key, "rkey" remote_key,);
    fields!("ibv_wc" Completion: "wr_id" work, "status" status, "byte_len" length, "qp_num" pair,
        "dlid_path_bits" path_bits,);
    fields!("ibv_sge" Part: "addr" address, "length" length, "lkey" key,);
    fields!("ibv_send_wr" Work: "wr_id" number, "next" next, "sg_list" parts,
        "num_sge" number_of_parts, "opcode" operation, "send_flags" flags,
        "wr.rdma.remote_addr" remote_address, "wr.rdma.rkey" remote_key,);
    fields!("ibv_qp_init_attr" PairAttributes: "qp_context" context, "send_cq" send_queue,
        "recv_cq" receive_queue, "srq" shared_receive, "cap.max_send_wr" max_sends,
        "cap.max_recv_wr" max_receives, "cap.max_send_sge" max_send_parts,
        "cap.max_recv_sge" max_receive_parts, "cap.max_inline_data" max_inline,
        "qp_type" kind, "sq_sig_all" signal_all,);
    fields!("rdma_event_channel" Channel: "fd" fd,);
    fields!("rdma_cm_id" Id: "verbs" verbs, "channel" channel, "context" context, "qp" pair,
        "route.addr.src_addr" source, "route.addr.dst_addr" destination,);
    fields!("rdma_conn_param" ConnectionParameters: "private_data" private_data,
        "private_data_len" private_data_length, "responder_resources" responder_resources,
        "initiator_depth" initiator_depth, "flow_control" flow_control,
        "retry_count" retry_count, "rnr_retry_count" rnr_retry_count, "srq" shared_receive,
        "qp_num" pair,);
    fields!("rdma_cm_event" Event: "id" id, "listen_id" listener, "event" kind, "status" status,
        "param.conn" connection,);
    say("sizeof(struct ibv_wc)", size_of::<Completion>());
    say("sizeof(struct ibv_send_wr)", size_of::<Work>());
    say("sizeof(struct ibv_sge)", size_of::<Part>());
    say(
        "sizeof(struct ibv_qp_init_attr)",
        size_of::<PairAttributes>(),
    );
    say(
        "sizeof(struct rdma_conn_param)",
        size_of::<ConnectionParameters>(),
    );
    let constants: [(&str, u32); 23] = [
        ("IBV_WR_RDMA_READ", READ),
        ("IBV_WR_RDMA_WRITE", WRITE),
        ("IBV_SEND_SIGNALED", SIGNALED),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as u32),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as u32),
        ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ as u32),
        ("IBV_QPT_RC", RELIABLE_CONNECTION),
        ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP as u32),
        ("IBV_WC_SUCCESS", 0),
        ("RDMA_PS_TCP", TCP_PORTS),
        ("RDMA_OPTION_ID", OPTION_ID as u32),
        ("RDMA_OPTION_ID_REUSEADDR", OPTION_REUSE_ADDRESS as u32),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", OPTION_ACK_TIMEOUT as u32),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", ADDRESS_RESOLVED),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", ROUTE_RESOLVED),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", CONNECT_REQUEST),
        ("RDMA_CM_EVENT_REJECTED", REJECTED),
        ("RDMA_CM_EVENT_ESTABLISHED", ESTABLISHED),
        ("RDMA_CM_EVENT_DISCONNECTED", DISCONNECTED),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", DEVICE_REMOVED),
        ("RDMA_CM_EVENT_TIMEWAIT_EXIT", TIME_WAIT_EXIT),
        ("sizeof(enum ibv_wc_status)", 4),
        ("sizeof(enum rdma_cm_event_type)", 4),
    ];
    for (name, value) in constants {
        say(name, value as usize);
    }
    program.push_str("}\n");
    (program, expected)
}

#[test]
fn structures_are_as_in_the_headers() {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        crate::testing::report_skipped("no RDMA headers here (package librdmacm-dev)");
        return;
    }
    let (program, expected) = layout();
    let folder = std::env::temp_dir().join(format!("evenkeel-rdma-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, program).unwrap();
    let built = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output();
    let said = Command::new(&binary).output();
    fs::remove_dir_all(&folder).unwrap();
    let built = built.unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&said.unwrap().stdout), expected);
}
