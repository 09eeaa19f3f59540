// Makes every mistake with a batch, and prints the words of each refusal.
using System;
using Minbuild;

static class Refusals
{
    static void Refused(Action call)
    {
        try { call(); }
        catch (TrainerException error) { Console.WriteLine(error.Code + " " + error.Message); return; }
        throw new Exception("it was not refused");
    }

    static Tensor Image(int count, int side = 28) => new Tensor(new float[count * 28 * side], count, 1, 28, side);

    static Tensor Labels(params long[] labels) => new Tensor(labels, labels.Length);

    static void Main()
    {
        string plan = "../../model/trainer.plan", checkpoint = "../../model/checkpoint";
        var session = new TrainingSession(checkpoint, plan);
        var small = new TrainingSession(checkpoint, plan, 4);
        Refused(() => session.TrainStep(new Tensor(new double[2 * 784], 2, 1, 28, 28), Labels(0, 0)));
        Refused(() => session.TrainStep(Image(2, 27), Labels(0, 0)));
        Refused(() => session.TrainStep(Image(2), Labels(0, 0, 0)));
        Refused(() => session.TrainStep(Image(0), Labels()));
        Refused(() => session.TrainStep(Image(4), Labels(0, 9, 1, 10)));
        Refused(() => small.TrainStep(Image(5), new Tensor(new long[5], 5)));
        Refused(() => session.TrainStep(Image(33), new Tensor(new long[33], 33)));
        Refused(() => session.EvalStep(Image(1), Labels(-1)));
        Refused(() => session.TrainStep(Image(1)));
        session.TrainStep(Image(2), Labels(0, 0)); // the session goes on
    }
}
