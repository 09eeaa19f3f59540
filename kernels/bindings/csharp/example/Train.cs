using System;
using System.Globalization;
using System.IO;
using Minbuild;

/// <summary>Trains an image classifier of this package, such as LeNet, on made-up images: class k is a bright square at
/// place k. Arguments: the package's folder and the number of steps.</summary>
internal static class Train
{
    private const int Batch = 8, Classes = 10;
    private static uint state = 1;

    // 24 random bits, the same on every machine.
    private static uint RandomBits()
    {
        state = unchecked(state * 1664525u + 1013904223u);
        return state >> 8;
    }

    private static Tensor[] MakeBatch(int channels, int side)
    {
        int square = side / 5;
        var pixels = new float[Batch * channels * side * side];
        var labels = new long[Batch];
        for (int i = 0; i < pixels.Length; ++i) pixels[i] = RandomBits() / 16777216f;
        for (int n = 0; n < Batch; ++n)
        {
            int k = (int)(RandomBits() % Classes);
            labels[n] = k;
            for (int c = 0; c < channels; ++c)
            for (int y = 0; y < square; ++y)
            for (int x = 0; x < square; ++x)
            {
                int row = k / 5 * 2 * square + y, column = k % 5 * square + x;
                pixels[((n * channels + c) * side + row) * side + column] += 2;
            }
        }
        return new[] { new Tensor(pixels, Batch, channels, side, side), new Tensor(labels, Batch) };
    }

    private static void Main(string[] arguments)
    {
        string model = (arguments.Length > 0 ? arguments[0] : ".") + "/model/";
        int steps = arguments.Length > 1 ? int.Parse(arguments[1]) : 60;
        string plan = model + "trainer.plan"; // not there where it is compiled in
        using (var session = new TrainingSession(model + "checkpoint", File.Exists(plan) ? plan : null))
        {
            int[] dims = session.TrainInputDims(0); // [batch, channels, side, side]
            session.RegisterLinearLRScheduler(5, 2 * steps, 0.002f);
            for (int step = 0; step < steps; ++step)
            {
                float loss = session.TrainStep(MakeBatch(dims[1], dims[2]))[0].Floats[0];
                Console.WriteLine(loss.ToString("F6", CultureInfo.InvariantCulture));
                session.OptimizerStep();
                session.LazyResetGrad();
                session.SchedulerStep();
            }
            session.SaveCheckpoint("trained.checkpoint", includeOptimizer: true);
        }
    }
}
