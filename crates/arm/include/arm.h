/*
 * arm.h - Application Response Measurement, version 2.0 (The Open Group, C807).
 *
 * A program says when its transactions start and stop. libarm counts them in memory
 * that it shares with an agent; the agent need not run, and may come and go.
 *
 *     appl = arm_init("shop", "*", 0, NULL, 0);
 *     tran = arm_getid(appl, "request", NULL, 0, NULL, 0);
 *
 *     handle = arm_start(tran, 0, NULL, 0);
 *     ... serve ...
 *     arm_stop(handle, ARM_GOOD, 0, NULL, 0);
 *
 *     arm_end(appl, 0, NULL, 0);
 *
 * Calls may come from any thread. A transaction may be stopped by another thread than
 * started it. A process that forks may call arm_init before or after: parent and child
 * are then two processes of one application, each with its own transactions, and a
 * handle is good in the process that it was started in. No call needs to be checked: one
 * with an identifier or handle that an earlier, failed call returned does nothing and
 * returns a negative number, too.
 *
 * arm_start, arm_update and arm_stop take no lock, allocate nothing and make no system
 * call (a thread's first arm_start apart, which makes a few).
 */
#ifndef ARM_H_INCLUDED
#define ARM_H_INCLUDED

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t arm_int32_t;
typedef int64_t arm_int64_t;
typedef uint32_t arm_unsigned32_t;
typedef uint64_t arm_unsigned64_t;
typedef unsigned char arm_bit8_t;

typedef arm_int32_t arm_appl_id_t;      /* an application, from arm_init */
typedef arm_int32_t arm_tran_id_t;      /* a class of transactions, from arm_getid */
typedef arm_int32_t arm_start_handle_t; /* a transaction, from arm_start */
typedef arm_int32_t arm_ret_stat_t;     /* 0, or negative if the call made no sense */
typedef arm_int32_t arm_status_t;
typedef arm_int32_t arm_flag_t;
typedef arm_int32_t arm_data_sz_t;
typedef char arm_data_t;

/* How a transaction ended. Any other number counts as ARM_FAILED. */
#define ARM_GOOD 0   /* as it should */
#define ARM_ABORT 1  /* by a failure of the system, or because the client left */
#define ARM_FAILED 2 /* without the result that it was for */

/* Formats of data buffers. */
#define ARM_Format1 1     /* arm_user_data1_t */
#define ARM_Format101 101 /* arm_user_data101_t */

/* Types of metrics. */
#define ARM_Counter32 1
#define ARM_Counter64 2
#define ARM_CntrDivr32 3
#define ARM_Gauge32 4
#define ARM_Gauge64 5
#define ARM_GaugeDivr32 6
#define ARM_NumericID32 7
#define ARM_NumericID64 8
#define ARM_String8 9
#define ARM_String32 10

/* Bits of flags[0] in a buffer of format 1. libarm makes no correlators: it leaves
 * ARM_CorrGen_f as it is, which is how a program sees that there is none. */
#define ARM_CorrPar_f 0x80 /* a parent's correlator is given */
#define ARM_CorrReq_f 0x40 /* a correlator is asked for */
#define ARM_CorrGen_f 0x20 /* a correlator was made */
#define ARM_TraceReq_f 0x10

/* Bits of flags[1]: which metrics are given (format 1) or declared (format 101). */
#define ARM_Metric1_f 0x80
#define ARM_Metric2_f 0x40
#define ARM_Metric3_f 0x20
#define ARM_Metric4_f 0x10
#define ARM_Metric5_f 0x08
#define ARM_Metric6_f 0x04
#define ARM_AllMetrics_f 0xfe /* these and the string */
#define ARM_String1_f 0x02

/* A number of eight bytes, in the machine's byte order. Types of 32 bits use the first
 * four. */
typedef union arm_metric {
    arm_unsigned32_t counter32, gauge32, numeric_id32;
    arm_unsigned64_t counter64, gauge64, numeric_id64;
    struct {
        arm_unsigned32_t value, divisor;
    } divr32;
    char string8[8];
} arm_metric_t;

/* Data of a transaction, for arm_start, arm_update and arm_stop. What a later call
 * gives replaces what an earlier one gave. */
typedef struct arm_user_data1 {
    arm_int32_t format; /* ARM_Format1 */
    arm_bit8_t flags[4];
    arm_metric_t metric[6];
    char string32[32];
    unsigned char correlator[168];
} arm_user_data1_t;

/* What the data of a class of transactions means, for arm_getid. */
typedef struct arm_user_data101 {
    arm_int32_t format; /* ARM_Format101 */
    arm_bit8_t flags[4];
    struct {
        arm_int32_t type;
        char name[44];
    } metric[7];
} arm_user_data101_t;

/*
 * The metrics that libarm understands, in any of the first six places; it skips others.
 *
 * ARM_CLIENT, of type ARM_NumericID64 or ARM_NumericID32: who is served, as any number
 * that is the same for the same client (an IPv4 address, a hash of an IPv6 address, of a
 * session). From it come think times: from a client's stop to its next start.
 *
 * ARM_QUEUEING_TIME, of type ARM_Gauge64 or ARM_Gauge32: how many microseconds the
 * request waited in the server's queue before it was served. It counts within the
 * response time, so arm_start belongs before the queue.
 */
#define ARM_CLIENT "Client"
#define ARM_QUEUEING_TIME "Queueing time (us)"

/*
 * Opens an application. All processes and threads of a server give the same name, of 1
 * to 127 bytes; a server that is replicated on one machine gives each replica its own.
 * Calls with the same name return the same identifier, and are each ended by one
 * arm_end. The user id is not used.
 *
 * Returns a positive identifier, or -1 (no name; 64 other applications in this process).
 */
arm_appl_id_t arm_init(const char *appl_name, const char *appl_user_id, arm_flag_t flags,
                       const arm_data_t *data, arm_data_sz_t data_size);

/*
 * Names a class of transactions. The data, if any, is an arm_user_data101_t. The same
 * names get the same identifier.
 *
 * Returns a positive identifier, or -1 (no such application; no name; 1,024 classes).
 */
arm_tran_id_t arm_getid(arm_appl_id_t appl_id, const char *tran_name,
                        const char *tran_detail, arm_flag_t flags, const arm_data_t *data,
                        arm_data_sz_t data_size);

/*
 * A transaction starts. The data, if any, is an arm_user_data1_t.
 *
 * Returns a positive handle, or -1 (no such class). A process has at most 16,384
 * transactions in flight: with more, old ones are given up, and counted as lost.
 */
arm_start_handle_t arm_start(arm_tran_id_t tran_id, arm_flag_t flags,
                             const arm_data_t *data, arm_data_sz_t data_size);

/*
 * A transaction goes on, and may have other data.
 *
 * Returns 0, or -1 (no such transaction in flight).
 */
arm_ret_stat_t arm_update(arm_start_handle_t start_handle, arm_flag_t flags,
                          const arm_data_t *data, arm_data_sz_t data_size);

/*
 * A transaction stops.
 *
 * Returns 0, or -1 (no such transaction in flight).
 */
arm_ret_stat_t arm_stop(arm_start_handle_t start_handle, arm_status_t tran_status,
                        arm_flag_t flags, const arm_data_t *data, arm_data_sz_t data_size);

/*
 * Closes an application; what it has in flight is given up. When the last process of a
 * server did, the agent tells the broker that the server is exiting.
 *
 * Returns 0, or -1 (no such application).
 */
arm_ret_stat_t arm_end(arm_appl_id_t appl_id, arm_flag_t flags, const arm_data_t *data,
                       arm_data_sz_t data_size);

#ifdef __cplusplus
}
#endif

#endif
