/* A server for the tests: does what it is told on standard input, one call a line, and
 * answers each with one line. Built by library.rs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <arm.h>
#include <evenkeel.h>

/* Counts what is allocated, by the library, too. */
static long allocations;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);

void *malloc(size_t size)
{
    ++allocations;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    ++allocations;
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    ++allocations;
    return __libc_realloc(memory, size);
}

static void say(long number)
{
    printf("%ld\n", number);
    fflush(stdout);
}

static arm_data_t *definitions(void)
{
    static arm_user_data101_t data;
    data.format = ARM_Format101;
    data.flags[1] = ARM_Metric1_f | ARM_Metric4_f;
    data.metric[0].type = ARM_NumericID64;
    strcpy(data.metric[0].name, ARM_CLIENT);
    data.metric[3].type = ARM_Gauge64;
    strcpy(data.metric[3].name, ARM_QUEUEING_TIME);
    return (arm_data_t *)&data;
}

/* Negative numbers are not given. */
static arm_user_data1_t values(long client, long wait)
{
    arm_user_data1_t data;
    memset(&data, 0, sizeof data);
    data.format = ARM_Format1;
    data.flags[1] = (client < 0 ? 0 : ARM_Metric1_f) | (wait < 0 ? 0 : ARM_Metric4_f);
    data.metric[0].numeric_id64 = client;
    data.metric[3].gauge64 = wait;
    return data;
}

static long tran, turns;

static void *work(void *client)
{
    for (long turn = 0; turn < turns; ++turn) {
        arm_user_data1_t data = values((long)client, -1);
        arm_start_handle_t handle = arm_start(tran, 0, (arm_data_t *)&data, sizeof data);
        if (handle < 0 || arm_stop(handle, turn % 3, 0, NULL, 0) != 0)
            abort();
    }
    return NULL;
}

/* Serves in a process that the kernel kills for any system call but exit: 0 if it lives
 * and nothing was allocated. */
static int quietly(void)
{
    struct sock_filter only_exit[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the call */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {4, only_exit};
    int status;
    pid_t child = fork();
    if (child == 0) {
        work(NULL); /* the first one of a thread asks the system who it is */
        long before = allocations;
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            abort();
        work(NULL);
        syscall(SYS_exit, allocations - before);
    }
    waitpid(child, &status, 0);
    return status;
}

static void threads(long count)
{
    pthread_t thread[64];
    for (long i = 0; i < count; ++i)
        pthread_create(&thread[i], NULL, work, (void *)(i + 1));
    for (long i = 0; i < count; ++i)
        pthread_join(thread[i], NULL);
}

int main(void)
{
    char line[512], word[256];
    long a, b, c;
    setvbuf(stdin, NULL, _IONBF, 0); /* a child goes on where its parent was */
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "init %255s", word) == 1) {
            say(arm_init(word, "*", 0, NULL, 0));
        } else if (!strcmp(line, "bogus\n")) {
            char junk[600];
            memset(junk, 0xff, sizeof junk);
            say(arm_init(NULL, NULL, 0, NULL, 0));
            say(arm_init("", "*", -1, junk, -5));
            say(arm_getid(1, NULL, NULL, 0, NULL, 0));
            say(arm_getid(0, "x", "y", 0, junk, sizeof junk));
            say(arm_getid(77, "x", NULL, 0, NULL, 0));
            say(arm_start(0, 0, NULL, 0));
            say(arm_start(-1, -1, junk, sizeof junk));
            say(arm_start(1 << 30, 0, NULL, 1000));
            say(arm_update(0, 0, junk, sizeof junk));
            say(arm_stop(-1, 0, 0, junk, sizeof junk));
            say(arm_stop(0x7fffffff, 0, 0, NULL, 0));
            say(arm_end(0, 0, NULL, 0));
            say(arm_end(64, 0, junk, 4));
        } else if (sscanf(line, "getid %ld %255s", &a, word) == 2) {
            say(tran = arm_getid(a, word, NULL, 0, definitions(), sizeof(arm_user_data101_t)));
        } else if (sscanf(line, "start %ld %ld %ld", &a, &b, &c) == 3) {
            arm_user_data1_t data = values(b, c);
            say(arm_start(a, 0, (arm_data_t *)&data, sizeof data));
        } else if (sscanf(line, "update %ld %ld %ld", &a, &b, &c) == 3) {
            arm_user_data1_t data = values(b, c);
            say(arm_update(a, 0, (arm_data_t *)&data, sizeof data));
        } else if (sscanf(line, "stop %ld %ld", &a, &b) == 2) {
            say(arm_stop(a, b, 0, NULL, 0));
        } else if (sscanf(line, "end %ld", &a) == 1) {
            say(arm_end(a, 0, NULL, 0));
        } else if (sscanf(line, "shed %ld", &a) == 1) {
            say(evenkeel_shed(a));
        } else if (sscanf(line, "measured %ld", &a) == 1) {
            say(evenkeel_measured(a));
        } else if (sscanf(line, "threads %ld %ld", &a, &turns) == 2) {
            threads(a);
            say(0);
        } else if (sscanf(line, "quietly %ld", &turns) == 1) {
            say(quietly());
        } else if (sscanf(line, "leak %ld %ld", &a, &b) == 2) {
            while (b-- > 0)
                c = arm_start(a, 0, NULL, 0);
            say(c);
        } else if (!strcmp(line, "fork\n")) {
            /* The child takes over; the parent goes on when it is gone. */
            pid_t child = fork();
            if (child > 0) {
                int status;
                waitpid(child, &status, 0);
            }
            say(child > 0 ? child : getpid());
        } else if (!strcmp(line, "exec\n")) {
            execl("/proc/self/exe", "client", NULL);
            return 3;
        } else if (!strcmp(line, "exit\n")) {
            _exit(0);
        } else {
            return 2;
        }
    }
    return 0;
}
