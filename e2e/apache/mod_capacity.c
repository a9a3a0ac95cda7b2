/*
 * An Apache of a given capacity, for tests.
 *
 * Before Apache sends a document, the request passes through the only place of service
 * that the server has: first come, first served, for a time that is set, of which a part
 * is in proportion to the document's length. So the server is an honest queue: it does at
 * most 1/ServiceTime requests per second, and who finds others waits for them.
 *
 * The place is kept in virtual time. A request is told on arrival when it will be done,
 * and sleeps until then. That takes no CPU, so several servers fit one small machine, and
 * one that is late to wake up a thread delays that one response and takes no capacity
 * from the server.
 *
 * Where the server has a share of a CPU instead (a quota of a cgroup), that is its
 * capacity: with CapacityWork the request computes for that time, and nothing else.
 *
 *   CapacityServiceTime  microseconds for a document of mean length
 *   CapacityWork         the same, of a CPU
 *   CapacityMeanLength   bytes
 *   SetHandler capacity-status
 *                        answers three numbers: nanoseconds for which the place was busy
 *                        until now, requests that came to it, and the nanoseconds from
 *                        their arrival to the end of their service, all together
 */
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "apr_strings.h"
#include "httpd.h"
#include "http_config.h"
#include "http_log.h"
#include "http_protocol.h"

/* How much of the service time goes with the length. */
#define LENGTH_SHARE 0.25

typedef struct {
    pthread_mutex_t lock;
    int64_t free_at;
    int64_t busy;
    int64_t requests;
    int64_t response_time;
} place;

/* Shared by all processes of the server. */
static place *the_place;
static double service_time_us;
static double work_us;
static double mean_length = 1.0;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void sleep_until(int64_t at)
{
    struct timespec when = { at / 1000000000, at % 1000000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {
    }
}

static int status(request_rec *r)
{
    int64_t now, busy, requests, response_time;
    pthread_mutex_lock(&the_place->lock);
    now = now_ns();
    busy = the_place->busy;
    if (the_place->free_at > now) {
        busy -= the_place->free_at - now;
    }
    requests = the_place->requests;
    response_time = the_place->response_time;
    pthread_mutex_unlock(&the_place->lock);
    ap_set_content_type(r, "text/plain");
    ap_rprintf(r, "%" APR_INT64_T_FMT " %" APR_INT64_T_FMT " %" APR_INT64_T_FMT "\n",
               (apr_int64_t)busy, (apr_int64_t)requests, (apr_int64_t)response_time);
    return OK;
}

static void wait_for_place(int64_t work)
{
    int64_t now, until;
    pthread_mutex_lock(&the_place->lock);
    now = now_ns();
    until = (the_place->free_at > now ? the_place->free_at : now) + work;
    the_place->free_at = until;
    the_place->busy += work;
    the_place->requests += 1;
    the_place->response_time += until - now;
    pthread_mutex_unlock(&the_place->lock);
    sleep_until(until);
}

static void compute(int64_t work)
{
    int64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + work;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until) {
    }
}

static int handler(request_rec *r)
{
    double factor;
    if (r->handler && !strcmp(r->handler, "capacity-status")) {
        return status(r);
    }
    if (r->main || r->finfo.filetype != APR_REG) {
        return DECLINED;
    }
    factor = 1.0 - LENGTH_SHARE + LENGTH_SHARE * (double)r->finfo.size / mean_length;
    if (service_time_us > 0) {
        wait_for_place((int64_t)(1e3 * service_time_us * factor));
    }
    if (work_us > 0) {
        compute((int64_t)(1e3 * work_us * factor));
    }
    /* Apache sends it. */
    return DECLINED;
}

static int post_config(apr_pool_t *p, apr_pool_t *plog, apr_pool_t *ptemp, server_rec *s)
{
    pthread_mutexattr_t shared;
    if (the_place) {
        return OK;
    }
    the_place = mmap(NULL, sizeof *the_place, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (the_place == MAP_FAILED) {
        ap_log_error(APLOG_MARK, APLOG_CRIT, errno, s, "capacity: no shared memory");
        return HTTP_INTERNAL_SERVER_ERROR;
    }
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&the_place->lock, &shared);
    return OK;
}

static const char *set_number(cmd_parms *cmd, void *dummy, const char *text)
{
    char *end;
    double number = strtod(text, &end);
    if (*end != '\0' || !(number > 0)) {
        return apr_pstrcat(cmd->pool, cmd->cmd->name, " must be a number above 0", NULL);
    }
    *(double *)cmd->info = number;
    return NULL;
}

static const command_rec commands[] = {
    AP_INIT_TAKE1("CapacityServiceTime", set_number, &service_time_us, RSRC_CONF,
                  "microseconds for a document of mean length"),
    AP_INIT_TAKE1("CapacityWork", set_number, &work_us, RSRC_CONF,
                  "microseconds of a CPU for a document of mean length"),
    AP_INIT_TAKE1("CapacityMeanLength", set_number, &mean_length, RSRC_CONF,
                  "mean length of a document in bytes"),
    { NULL }
};

static void register_hooks(apr_pool_t *p)
{
    ap_hook_post_config(post_config, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_handler(handler, NULL, NULL, APR_HOOK_REALLY_FIRST);
}

AP_DECLARE_MODULE(capacity) = {
    STANDARD20_MODULE_STUFF, NULL, NULL, NULL, NULL, commands, register_hooks, 0
};
