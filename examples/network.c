/* examples/network.c - a network of two layers, trained by all ranks:
 * include/ddprun/ddp.h
 *
 *     ddprun -np 4 build/examples/network
 *     ddprun -H n1:2,n2:2,n3:2 --spares 1 build/examples/network kept 3000
 *     ddprun -np 4 build/examples/network saved 3000 checkpoints/
 *
 * The data are points of two spirals; which one is it? Forward, backward and data are the
 * program's own; the library adds up gradients, updates the weights and keeps all ranks
 * alike. Each rank has its part of a batch, the last of which is smaller, so the losses
 * are the same for every number of ranks.
 *
 * "kept": each epoch's end is kept in the memory of the hosts. When a rank or a host is
 * lost, ddprun starts the ranks again, and they go on from there. With a folder, every
 * 100th epoch is saved there while the next ones go on, and the same command goes on from
 * the newest file.
 */
#include "example.h"
#include "spirals.h"
#include <ddprun/ddp.h>

#include <string.h>

enum { SAVED = 100 /* epochs */ };

static float points[POINTS][2];
static struct ddp_param params[NPARAMS];

/* Adds a point's gradients to those of the layers; its loss. */
static float learn(const float *x, float wanted, float share, float *hidden_grads)
{
    float hidden[HIDDEN], out = params[OUT_BIAS].weight[0];
    for (int h = 0; h < HIDDEN; h++) {
        const float *w = params[IN].weight + 2 * h;
        hidden[h] = tanhf(w[0] * x[0] + w[1] * x[1] + params[IN_BIAS].weight[h]);
        out += params[OUT].weight[h] * hidden[h];
    }
    float loss = logf(1 + expf(wanted > 0 ? -out : out));
    float off = (1 / (1 + expf(-out)) - wanted) * share;
    params[OUT_BIAS].grad[0] += off;
    for (int h = 0; h < HIDDEN; h++) {
        params[OUT].grad[h] += off * hidden[h];
        hidden_grads[h] = off * params[OUT].weight[h] * (1 - hidden[h] * hidden[h]);
    }
    return loss * share;
}

/* One batch of points [from, to): the mean loss of this rank's. A program with more
 * layers calls ready() after each of them; here the first one's gradients are the sums of
 * what the second one has left behind. */
static float backward(struct ddp_parallel *p, int from, int to)
{
    static float left[BATCH][HIDDEN];
    float loss = 0;
    for (int i = 0; i < NPARAMS; i++)
        memset(params[i].grad, 0, params[i].count * sizeof(float));
    for (int i = from; i < to; i++)
        loss += learn(points[i], i % 2, 1.0f / (float)(to - from), left[i - from]);
    ddp_parallel_ready(p, OUT_BIAS);
    ddp_parallel_ready(p, OUT);
    for (int i = from; i < to; i++)
        for (int h = 0; h < HIDDEN; h++) {
            params[IN_BIAS].grad[h] += left[i - from][h];
            params[IN].grad[2 * h] += left[i - from][h] * points[i][0];
            params[IN].grad[2 * h + 1] += left[i - from][h] * points[i][1];
        }
    ddp_parallel_ready(p, IN_BIAS);
    ddp_parallel_ready(p, IN);
    return loss;
}

int main(int argc, char **argv)
{
    const struct ddp_parallel_options options = {
        .optimiser = "adamw",
        .decay = 0.0001f,
        .clip_norm = 1,
        .checkpoint = argc > 3 ? argv[3] : NULL,
        .replicated = argc > 1 && strcmp(argv[1], "replicated") == 0};
    bool kept = argc > 1 && strcmp(argv[1], "kept") == 0;
    uint64_t done = 0, epochs = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a lost rank has printed its lines */
    struct ddp_group *g = ddp_group_init(NULL, &err);
    check(g != NULL);
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    for (int i = 0; i < NPARAMS; i++)
        params[i] = (struct ddp_param){.name = names[i], .count = counts[i]};
    struct ddp_parallel *p = ddp_parallel_create(g, params, NPARAMS, &options, &err);
    check(p != NULL);
    make_points(points);
    for (int i = 0; i < NPARAMS && rank == 0; i++)
        make_weights(i, params[i].weight);
    check(ddp_parallel_share(p, &err) == 0);
    if (options.checkpoint)
        check(ddp_parallel_load(p, &done, &err) == 0);
    if (kept)
        check(ddp_parallel_restore(p, &done, &err) == 0);
    if (rank == 0 && done > 0)
        printf("going on after epoch %llu\n", (unsigned long long)done);
    for (uint64_t epoch = done + 1; epoch <= epochs; epoch++) {
        float total = 0;
        for (int at = 0; at < POINTS; at += BATCH) {
            int n = at + BATCH < POINTS ? BATCH : POINTS - at;
            int from = at + n * rank / size, to = at + n * (rank + 1) / size;
            check(ddp_parallel_begin(p, (size_t)(to - from), &err) == 0);
            struct ddp_step step = {.loss = to > from ? backward(p, from, to) : 0};
            check(ddp_parallel_step(p, 0.02f, &step, &err) == 0);
            total += step.loss * (float)step.samples / POINTS;
        }
        if (rank == 0 && epoch % 15 == 0)
            printf("epoch %llu: loss %.3g\n", (unsigned long long)epoch, (double)total);
        if (kept)
            check(ddp_parallel_keep(p, epoch, &err) == 0);
        if (options.checkpoint && (epoch % SAVED == 0 || epoch == epochs))
            check(ddp_parallel_save(p, epoch, &err) == 0);
    }
    check(ddp_parallel_finish(p, &err) == 0);
    check(ddp_parallel_check(p, &err) == 0);
    ddp_parallel_destroy(p);
    ddp_group_destroy(g);
    return 0;
}
