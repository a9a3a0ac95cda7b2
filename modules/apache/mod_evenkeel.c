/*
 * mod_evenkeel - tells an Evenkeel agent what this server carries, and sends clients back
 * to the balancer while the agent says that its location is overloaded.
 *
 * Each request is one transaction of ARM 2.0 (The Open Group, C807): it starts when its
 * head has been read and stops when the last byte of the response was handed to the
 * network, or when the client left. Subrequests and internal redirects are part of it.
 *
 * Without an agent nothing reads what is counted, and no alert is ever set.
 */

#include "httpd.h"
#include "http_config.h"
#include "http_core.h"
#include "http_log.h"
#include "http_protocol.h"
#include "http_request.h"
#include "ap_listen.h"
#include "apr_lib.h"
#include "apr_network_io.h"
#include "apr_strings.h"
#include "apr_uri.h"

#include <arm.h>
#include <evenkeel.h>
#include <stddef.h>
#include <unistd.h>

module AP_MODULE_DECLARE_DATA evenkeel_module;
APLOG_USE_MODULE(evenkeel);

/* Settings of a server or virtual host. NULL and UNSET are inherited. */
typedef struct {
    const char *application;
    const char *balancer; /* with no slash at the end */
    int shed;
    apr_array_header_t *exempt;  /* of const char *: path prefixes */
    apr_array_header_t *proxies; /* of apr_ipsubnet_t * */

    /* From the library. */
    arm_appl_id_t appl;
    arm_tran_id_t tran;
} settings_t;

#define UNSET (-1)

/* A request in flight. */
typedef struct {
    request_rec *r;
    arm_start_handle_t handle;
} transaction_t;

/* ---- Configuration ---------------------------------------------------------------- */

static void *create_settings(apr_pool_t *pool, server_rec *s)
{
    settings_t *settings = apr_pcalloc(pool, sizeof *settings);
    settings->shed = UNSET;
    settings->appl = settings->tran = -1;
    return settings;
}

static void *merge_settings(apr_pool_t *pool, void *outer, void *inner)
{
    const settings_t *base = outer, *own = inner;
    settings_t *settings = create_settings(pool, NULL);
    settings->application = own->application ? own->application : base->application;
    settings->balancer = own->balancer ? own->balancer : base->balancer;
    settings->shed = own->shed != UNSET ? own->shed : base->shed;
    settings->exempt = own->exempt ? own->exempt : base->exempt;
    settings->proxies = own->proxies ? own->proxies : base->proxies;
    return settings;
}

static settings_t *settings_of(const server_rec *s)
{
    return ap_get_module_config(s->module_config, &evenkeel_module);
}

static const char *set_application(cmd_parms *cmd, void *unused, const char *name)
{
    size_t len = strlen(name);
    if (len < 1 || len > 127)
        return "EvenkeelApplication: a name has 1 to 127 bytes";
    for (const char *c = name; *c; ++c)
        if (apr_iscntrl(*c))
            return "EvenkeelApplication: a name has no control characters";
    settings_of(cmd->server)->application = name;
    return NULL;
}

static const char *set_balancer(cmd_parms *cmd, void *unused, const char *url)
{
    apr_uri_t uri;
    size_t len = strlen(url);
    for (const char *c = url; *c; ++c)
        if (!apr_isgraph(*c) || strchr("\"<>\\^`{|}", *c))
            return apr_psprintf(cmd->pool,
                                "EvenkeelBalancer: '%s' has a character that no URL has", url);
    if (apr_uri_parse(cmd->pool, url, &uri) != APR_SUCCESS || !uri.scheme || !uri.hostname
        || !*uri.hostname || (strcmp(uri.scheme, "http") && strcmp(uri.scheme, "https")))
        return apr_psprintf(cmd->pool,
                            "EvenkeelBalancer: '%s' is not like http://balancer.example:8080",
                            url);
    if (uri.user || uri.query || uri.fragment)
        return "EvenkeelBalancer: the URL may have a path, and no user, query or fragment";
    /* The request's own path starts with one. */
    while (len && url[len - 1] == '/')
        --len;
    settings_of(cmd->server)->balancer = apr_pstrmemdup(cmd->pool, url, len);
    return NULL;
}

static const char *set_shed(cmd_parms *cmd, void *unused, int on)
{
    settings_of(cmd->server)->shed = on;
    return NULL;
}

static const char *add_exempt(cmd_parms *cmd, void *unused, const char *prefix)
{
    settings_t *settings = settings_of(cmd->server);
    if (*prefix != '/')
        return apr_psprintf(cmd->pool,
                            "EvenkeelShedExempt: '%s' does not start with a slash", prefix);
    if (!settings->exempt)
        settings->exempt = apr_array_make(cmd->pool, 4, sizeof(const char *));
    APR_ARRAY_PUSH(settings->exempt, const char *) = prefix;
    return NULL;
}

static const char *add_proxy(cmd_parms *cmd, void *unused, const char *subnet)
{
    settings_t *settings = settings_of(cmd->server);
    char *address = apr_pstrdup(cmd->temp_pool, subnet);
    char *mask = strchr(address, '/');
    apr_ipsubnet_t *parsed;
    if (mask)
        *mask++ = '\0';
    if (apr_ipsubnet_create(&parsed, address, mask, cmd->pool) != APR_SUCCESS)
        return apr_psprintf(cmd->pool,
                            "EvenkeelProxy: '%s' is neither an address nor like 10.0.0.0/8",
                            subnet);
    if (!settings->proxies)
        settings->proxies = apr_array_make(cmd->pool, 4, sizeof(apr_ipsubnet_t *));
    APR_ARRAY_PUSH(settings->proxies, apr_ipsubnet_t *) = parsed;
    return NULL;
}

static const command_rec directives[] = {
    AP_INIT_TAKE1("EvenkeelApplication", set_application, NULL, RSRC_CONF,
                  "the name under which the agent finds this server; default: "
                  "name and port of the main server"),
    AP_INIT_TAKE1("EvenkeelBalancer", set_balancer, NULL, RSRC_CONF,
                  "where clients are sent while there is an alert: the balancer's URL"),
    AP_INIT_FLAG("EvenkeelShed", set_shed, NULL, RSRC_CONF,
                 "whether clients are sent to the balancer while there is an alert; "
                 "default: On where EvenkeelBalancer is set"),
    AP_INIT_ITERATE("EvenkeelShedExempt", add_exempt, NULL, RSRC_CONF,
                    "paths below which requests are always served"),
    AP_INIT_ITERATE("EvenkeelProxy", add_proxy, NULL, RSRC_CONF,
                    "addresses of proxies, whose requests are always served"),
    {NULL, {NULL}, NULL, 0, RAW_ARGS, NULL}};

/* ---- Start and end of the server --------------------------------------------------- */

/* What outlives a restart, when this module is loaded anew and the process is not. */
typedef struct {
    apr_array_header_t *open; /* of arm_appl_id_t */
} retained_t;

static retained_t *retained(process_rec *process)
{
    static const char *const key = "mod_evenkeel";
    void *data = NULL;
    apr_pool_userdata_get(&data, key, process->pool);
    if (!data) {
        retained_t *fresh = apr_pcalloc(process->pool, sizeof *fresh);
        fresh->open = apr_array_make(process->pool, 4, sizeof(arm_appl_id_t));
        apr_pool_userdata_setn(fresh, key, apr_pool_cleanup_null, process->pool);
        data = fresh;
    }
    return data;
}

static void end_all(apr_array_header_t *open)
{
    for (int i = 0; i < open->nelts; ++i)
        arm_end(APR_ARRAY_IDX(open, i, arm_appl_id_t), 0, NULL, 0);
    open->nelts = 0;
}

/* The configuration goes: on a restart, and at the end. */
static apr_status_t on_unload(void *process)
{
    if (ap_state_query(AP_SQ_MAIN_STATE) == AP_SQ_MS_EXITING)
        end_all(retained(process)->open);
    return APR_SUCCESS;
}

static const char *default_application(apr_pool_t *pool, const server_rec *main_server)
{
    apr_port_t port = main_server->port;
    if (!port && ap_listeners && ap_listeners->bind_addr)
        port = ap_listeners->bind_addr->port;
    return apr_psprintf(pool, "%s:%u", main_server->server_hostname, (unsigned)(port ? port : 80));
}

static arm_tran_id_t transaction_class(arm_appl_id_t appl)
{
    arm_user_data101_t data = {ARM_Format101, {0, ARM_Metric1_f, 0, 0}, {{0, ""}}};
    data.metric[0].type = ARM_NumericID64;
    apr_cpystrn(data.metric[0].name, ARM_CLIENT, sizeof data.metric[0].name);
    return arm_getid(appl, "request", "mod_evenkeel", 0, (arm_data_t *)&data, sizeof data);
}

static int on_configured(apr_pool_t *conf, apr_pool_t *log, apr_pool_t *temp, server_rec *all)
{
    retained_t *kept = retained(all->process);
    apr_array_header_t *before;
    const char *main_name, *warned = NULL;

    /* At start httpd reads its configuration twice; this is the first time. */
    if (ap_state_query(AP_SQ_MAIN_STATE) == AP_SQ_MS_CREATE_PRE_CONFIG)
        return OK;

    /* First open, then close: a restart must not look like an end. */
    before = apr_array_copy(temp, kept->open);
    kept->open->nelts = 0;
    main_name = settings_of(all)->application;
    if (!main_name)
        main_name = default_application(conf, all);
    for (server_rec *s = all; s; s = s->next) {
        settings_t *settings = settings_of(s);
        if (!settings->application)
            settings->application = main_name;
        if (settings->shed == 1 && !settings->balancer) {
            ap_log_error(APLOG_MARK, APLOG_CRIT, 0, s,
                         "EvenkeelShed is On for %s:%u, and there is no EvenkeelBalancer to "
                         "send clients to", s->server_hostname, (unsigned)s->port);
            return HTTP_INTERNAL_SERVER_ERROR;
        }
        settings->appl = arm_init(settings->application, "*", 0, NULL, 0);
        if (settings->appl < 0) {
            ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                         "cannot open the application '%s': its requests are not measured",
                         settings->application);
            continue;
        }
        if (!evenkeel_measured(settings->appl) && settings->application != warned) {
            ap_log_error(APLOG_MARK, APLOG_WARNING, 0, s,
                         "no agent can see the requests of '%s': there is no place for its "
                         "page in $EVENKEEL_ARM_DIR, /run/evenkeel or /dev/shm",
                         settings->application);
            warned = settings->application;
        }
        APR_ARRAY_PUSH(kept->open, arm_appl_id_t) = settings->appl;
        settings->tran = transaction_class(settings->appl);
    }
    end_all(before);
    apr_pool_cleanup_register(conf, all->process, on_unload, apr_pool_cleanup_null);
    return OK;
}

/* ---- The shed valve ---------------------------------------------------------------- */

static int is_exempt(const apr_array_header_t *prefixes, const char *path)
{
    for (int i = 0; prefixes && i < prefixes->nelts; ++i) {
        const char *prefix = APR_ARRAY_IDX(prefixes, i, const char *);
        size_t len = strlen(prefix);
        /* Whole segments: /health is not /healthy. */
        if (!strncmp(path, prefix, len)
            && (prefix[len - 1] == '/' || path[len] == '\0' || path[len] == '/'))
            return 1;
    }
    return 0;
}

static int is_proxy(const apr_array_header_t *subnets, apr_sockaddr_t *peer)
{
    for (int i = 0; subnets && i < subnets->nelts; ++i)
        if (apr_ipsubnet_test(APR_ARRAY_IDX(subnets, i, apr_ipsubnet_t *), peer))
            return 1;
    return 0;
}

/* Appends what a client sent, as a part of a URL in a header: what is not plain there
 * becomes an escape. */
static char *append(char *to, const char *from)
{
    static const char digits[] = "0123456789ABCDEF";
    for (; *from; ++from) {
        unsigned char c = *from;
        if (apr_isgraph(c) && c < 0x7f) {
            *to++ = c;
        } else {
            *to++ = '%';
            *to++ = digits[c >> 4];
            *to++ = digits[c & 15];
        }
    }
    *to = '\0';
    return to;
}

/* Where this request's resource is at the balancer. Its host is never the client's word:
 * of the request only path and query are used, and the path starts with a slash. */
static const char *at_balancer(request_rec *r, const char *balancer)
{
    const char *path = r->parsed_uri.path, *query = r->parsed_uri.query;
    size_t len = strlen(balancer) + 3 * (strlen(path) + (query ? strlen(query) : 0)) + 2;
    char *url = apr_palloc(r->pool, len), *end;
    end = append(url, balancer);
    end = append(end, path);
    if (query) {
        *end++ = '?';
        append(end, query);
    }
    return url;
}

/* While the location is under alert, clients are to ask the balancer again. */
static int shed(request_rec *r, const settings_t *settings)
{
    if (!settings->balancer || !settings->shed || !evenkeel_shed(settings->appl))
        return 0;
    if (!r->parsed_uri.path || *r->parsed_uri.path != '/')
        return 0;
    if (is_exempt(settings->exempt, r->parsed_uri.path)
        || is_proxy(settings->proxies, r->connection->client_addr))
        return 0;
    apr_table_setn(r->headers_out, "Location", at_balancer(r, settings->balancer));
    /* The next request asks here again: the alert may be over. */
    apr_table_setn(r->err_headers_out, "Cache-Control", "no-store");
    return 1;
}

/* ---- Requests ---------------------------------------------------------------------- */

/* The request's pool goes: everything was sent, or never will be. */
static apr_status_t stop(void *data)
{
    const transaction_t *transaction = data;
    const request_rec *r = transaction->r;
    arm_status_t status = ARM_GOOD;
    if (r->connection->aborted) {
        status = ARM_ABORT;
    } else {
        while (r->next)
            r = r->next;
        if (r->status >= HTTP_INTERNAL_SERVER_ERROR)
            status = ARM_FAILED;
    }
    arm_stop(transaction->handle, status, 0, NULL, 0);
    return APR_SUCCESS;
}

/* A number for the client's address (FNV-1a of its text). */
static arm_unsigned64_t client(const request_rec *r)
{
    arm_unsigned64_t hash = APR_UINT64_C(0xcbf29ce484222325);
    for (const char *c = r->useragent_ip; c && *c; ++c)
        hash = (hash ^ (unsigned char)*c) * APR_UINT64_C(0x100000001b3);
    return hash;
}

/* The first that is asked about a request whose head is read and whose client is known. */
static int on_request(request_rec *r, int is_lookup)
{
    const settings_t *settings = settings_of(r->server);
    transaction_t *transaction;
    arm_user_data1_t data;

    /* Subrequests and internal redirects come here, too. "OPTIONS *" is about the server
     * and carries no load; httpd sends it to itself to wake its processes. */
    if (is_lookup || !ap_is_initial_req(r) || !strcmp(r->uri, "*"))
        return DECLINED;
    if (shed(r, settings))
        return HTTP_TEMPORARY_REDIRECT;

    data.format = ARM_Format1;
    memset(data.flags, 0, sizeof data.flags);
    data.flags[1] = ARM_Metric1_f;
    data.metric[0].numeric_id64 = client(r);
    transaction = apr_palloc(r->pool, sizeof *transaction);
    transaction->r = r;
    transaction->handle = arm_start(settings->tran, 0, (arm_data_t *)&data,
                                    offsetof(arm_user_data1_t, string32));
    if (transaction->handle >= 0)
        apr_pool_cleanup_register(r->pool, transaction, stop, apr_pool_cleanup_null);
    return DECLINED;
}

static void register_hooks(apr_pool_t *pool)
{
    ap_hook_post_config(on_configured, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_quick_handler(on_request, NULL, NULL, APR_HOOK_REALLY_FIRST);
}

module AP_MODULE_DECLARE_DATA evenkeel_module = {
    STANDARD20_MODULE_STUFF,
    NULL, /* nothing is set for a directory */
    NULL,
    create_settings,
    merge_settings,
    directives,
    register_hooks,
    AP_MODULE_FLAG_NONE};
